"""Talks to `trigraph serve MODEL.gguf` with OpenAI's client. Needs `pip install openai`.

Usage: python examples/openai_client.py http://127.0.0.1:8080 "Why is the sky blue?"
"""

import sys

from openai import OpenAI


def main(address: str, question: str) -> None:
    client = OpenAI(base_url=f"{address}/v1", api_key="none")
    stream = client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": question}], temperature=0, max_tokens=64, stream=True
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
