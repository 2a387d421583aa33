"""Large answers as JSON: `json.dumps` may take seconds of one, in which no other thread runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_bytes(value: Any) -> bytes:
    """The JSON of a value. Raises ValueError where it has a number that is not finite, or half a character."""
    written = bytearray()  # millions of pieces would take a gigabyte until they are joined
    for piece in json_pieces(value):
        written += piece
    return bytes(written)


def json_pieces(value: Any) -> Iterator[bytes]:
    """The JSON of a value, number by number."""
    return (piece.encode() for piece in _ENCODER.iterencode(value))
