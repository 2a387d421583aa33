"""Prints how likely the model finds each token of a text: its log-probability, and the most likely token there.

Usage: python examples/score.py MODEL.gguf "In the beginning God created the heaven"
"""

import sys

from trigraph import load


def main(model: str, text: str) -> None:
    engine = load(model)
    for token in engine.score(text, top=1):
        (likeliest, _), *_ = token.top
        found, expected = (engine.tokenizer.decode([id]) for id in (token.token, likeliest))
        print(f"{token.logprob:8.3f}  {found!r}  {expected!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
