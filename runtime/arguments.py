"""Option values of the command line that are more than a number or a name."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.constraint import Constraint, Grammar, JsonSchema, Regex

_BIAS = re.compile(r"(\d{1,18})([+-](?:inf|\d+\.?\d*|\.\d+))", re.ASCII)


def parse_logit_bias(text: str) -> tuple[int, float]:
    """`ID(+|-)BIAS`, as llama.cpp writes it, to a pair for `Sampling.logit_bias`."""
    match = _BIAS.fullmatch(text)
    if match is None:
        raise TrigraphError(f"--logit-bias {quote(text)}: write ID+BIAS or ID-BIAS, such as 15043+1.5 or 15043-inf")
    return int(match[1]), float(match[2])


def parse_constraint(json_schema: str | None, grammar: Path | None, regex: str | None) -> Constraint | None:
    """The constraint that one of the three options asks for; `json_schema` is JSON, or the name of a file with it."""
    given = [value for value in (json_schema, grammar, regex) if value is not None]
    if len(given) > 1:
        raise TrigraphError("--json-schema, --grammar and --regex exclude each other")
    if json_schema is not None:
        return JsonSchema(json_schema if json_schema.lstrip().startswith("{") else read_text(Path(json_schema)))
    if grammar is not None:
        return Grammar(read_text(grammar))
    return None if regex is None else Regex(regex)


def read_text(file: Path | None) -> str:
    """The text in a file; without one, of stdin."""
    try:
        return sys.stdin.buffer.read().decode("utf-8") if file is None else file.read_text(encoding="utf-8")
    except OSError as error:
        raise TrigraphError(f"{file or 'stdin'}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TrigraphError(f"{file or 'stdin'}: is not UTF-8 text ({error.reason} at byte {error.start})") from error
