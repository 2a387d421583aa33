"""Completes several texts at once. Each gets the tokens that it would get alone.

Usage: python examples/batch.py MODEL.gguf "In the beginning" "It was a dark night" "And the sea"
"""

import sys

from trigraph import load


def main(model: str, *prompts: str) -> None:
    engine = load(model, sequences=8)
    # All are decoded together from here on.
    requests = [engine.submit(prompt, max_tokens=32, temperature=0) for prompt in prompts]
    for prompt, request in zip(prompts, requests, strict=True):
        print(f"{prompt}|{request.result()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
