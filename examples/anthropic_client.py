"""Talks to `trigraph serve MODEL.gguf` with Anthropic's client. Needs `pip install anthropic`.

Usage: python examples/anthropic_client.py http://127.0.0.1:8080 "Why is the sky blue?"
"""

import sys

from anthropic import Anthropic


def main(address: str, question: str) -> None:
    client = Anthropic(base_url=address, api_key="none")
    with client.messages.stream(
        model="default",
        max_tokens=64,
        messages=[{"role": "user", "content": question}],
        extra_body={"temperature": 0},
    ) as stream:
        for text in stream.text_stream:
            print(text, end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
