"""Options that are several numbers, with commas between them."""

from __future__ import annotations

from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.cli.arguments import parse_bytes


def parse_counts(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers; none of an empty text."""
    try:
        return tuple(int(number) for number in text.split(",") if text)
    except ValueError:
        raise TrigraphError(f"{option} {text}: give comma-separated numbers, such as 1,2,4,8") from None


def parse_sizes(option: str, text: str | None) -> list[int] | None:
    """Numbers of `parse_bytes`, one for each GPU; None where the option is not given."""
    return None if text is None else [parse_bytes(option, part) or 0 for part in text.split(",")]


def parse_shares(option: str, text: str | None) -> list[float] | None:
    """Numbers, one for each GPU; None where the option is not given."""
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise TrigraphError(f"{option} {quote(text)}: write a number for each GPU, such as 1,2") from None
