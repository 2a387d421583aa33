"""Large answers as JSON: no other thread runs while a piece of one is written, and all at once may take seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_AT_ONCE = 16  # items of a long list


def json_bytes(value: Any) -> bytes:
    """The JSON of a value. Raises ValueError where it has a number that is not finite, or half a character."""
    return b"".join(json_pieces(value))


def json_pieces(value: Any) -> Iterator[bytes]:
    """The JSON of a value in pieces."""
    if isinstance(value, dict) and value:
        for i, (key, item) in enumerate(value.items()):
            yield (b"," if i else b"{") + _written(key) + b":"
            yield from json_pieces(item)
        yield b"}"
    elif isinstance(value, list) and len(value) > _AT_ONCE:
        for start in range(0, len(value), _AT_ONCE):
            yield (b"," if start else b"[") + _written(value[start : start + _AT_ONCE])[1:-1]
        yield b"]"
    elif isinstance(value, list) and value:
        for i, item in enumerate(value):
            yield b"," if i else b"["
            yield from json_pieces(item)
        yield b"]"
    else:
        yield _written(value)


def _written(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
