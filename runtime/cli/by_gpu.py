"""Values of options that have one for each GPU."""

from __future__ import annotations

from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.cli.arguments import parse_bytes


def parse_sizes(option: str, text: str | None) -> int | list[int] | None:
    """One of `parse_bytes`, or several between commas."""
    if text is None or "," not in text:
        return parse_bytes(option, text)
    return [size for part in text.split(",") if (size := parse_bytes(option, part)) is not None]


def parse_shares(option: str, text: str | None) -> list[float] | None:
    """Numbers above 0 between commas; None where the option is not given."""
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise TrigraphError(f"{option} {quote(text)}: write a number for each GPU, such as 1,2") from None
