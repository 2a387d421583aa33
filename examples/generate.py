"""Completes a text.

Usage: python examples/generate.py MODEL.gguf "In the beginning"
"""

import sys

from trigraph import load


def main(model: str, prompt: str) -> None:
    engine = load(model)
    generation = engine.generate(prompt, max_tokens=64, temperature=0.7, seed=1)
    for text in generation:
        print(text, end="", flush=True)
    print()
    print(f"{generation.stats.tokens} tokens, {generation.stats.finish_reason}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
