"""Option values of the command line that are more than a number or a name."""

from __future__ import annotations

import re

from trigraph.models.errors import TrigraphError, quote

_BIAS = re.compile(r"(\d{1,18})([+-](?:inf|\d+\.?\d*|\.\d+))", re.ASCII)


def parse_logit_bias(text: str) -> tuple[int, float]:
    """`ID(+|-)BIAS`, as llama.cpp writes it, to a pair for `Sampling.logit_bias`."""
    match = _BIAS.fullmatch(text)
    if match is None:
        raise TrigraphError(f"--logit-bias {quote(text)}: write ID+BIAS or ID-BIAS, such as 15043+1.5 or 15043-inf")
    return int(match[1]), float(match[2])
