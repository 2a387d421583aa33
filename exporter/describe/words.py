"""Names and sizes for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """A name that may be anything, for a terminal: short, and nothing that a terminal would obey."""
    return "".join(character for character in text[:200] if character.isprintable())


def readable_size(count: int) -> str:
    """Bytes in the largest unit that leaves a number of at least 1."""
    size, units = float(count), iter(("bytes", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while size >= 1024 and unit != "TiB":
        size, unit = size / 1024, next(units)
    return f"{size:.1f} {unit}" if unit != "bytes" else f"{count} bytes"
