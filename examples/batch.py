"""Completes several texts at once. Each gets the tokens that it would get alone.

Usage: python examples/batch.py MODEL.gguf "In the beginning" "It was a dark night" "And the sea"
"""

import sys

from trigraph.runtime import Options, Sampling, load


def main(model: str, *prompts: str) -> None:
    engine = load(model, sequences=8)
    options = Options(Sampling(temperature=0), max_tokens=32)
    requests = [engine.submit(prompt, options) for prompt in prompts]  # all are decoded together from here on
    for prompt, request in zip(prompts, requests, strict=True):
        print(f"{prompt}|{request.result()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
