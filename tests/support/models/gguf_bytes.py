"""GGUF files byte by byte, so that tests can write what no writer would."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from trigraph.models import GGUFFile

_NUMBER_CODES = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "u8": 10, "i8": 11, "f8": 12}


@dataclass(frozen=True)
class Raw:
    """The bytes of a metadata value, its type code included."""

    data: bytes


@dataclass(frozen=True)
class Entry:
    """A tensor description, and the data that is written at its place."""

    ne: tuple[int, ...]
    """ggml order: the contiguous dimension first."""
    data: bytes = b""
    type: int = int(GGMLQuantizationType.F32)
    offset: int | None = None
    """Relative to the data; None is the next free place."""


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(item: Any) -> bytes:
    """A metadata value with its type: int is u32, float is f32."""
    if isinstance(item, Raw):
        return item.data
    if isinstance(item, bool):
        return struct.pack("<IB", 7, item)
    if isinstance(item, int):
        return struct.pack("<II", 4, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    if isinstance(item, str):
        return struct.pack("<I", 8) + string(item)
    if isinstance(item, list):
        return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(map(string, item))
    array = np.asarray(item)
    code = 7 if array.dtype == np.bool_ else _NUMBER_CODES[array.dtype.str[1:]]
    return struct.pack("<IIQ", 9, code, array.size) + array.tobytes()


def gguf_bytes(
    pairs: Mapping[str, Any] | list[tuple[str | bytes, Any]],
    tensors: Mapping[str, Entry] | list[tuple[str, Entry]] = (),  # type: ignore[assignment]
    *,
    version: int = 3,
    counts: tuple[int | None, int | None] = (None, None),
    alignment: int = 32,
) -> bytes:
    """A whole file. `counts` replaces the numbers of tensors and pairs that the header declares."""
    pairs = list(pairs.items()) if isinstance(pairs, Mapping) else pairs
    tensors = list(tensors.items()) if isinstance(tensors, Mapping) else list(tensors)
    declared = [
        real if count is None else count for count, real in zip(counts, (len(tensors), len(pairs)), strict=True)
    ]
    out = b"GGUF" + struct.pack("<IQQ", version, *declared)
    out += b"".join(string(key) + value(item) for key, item in pairs)
    body = bytearray()
    for name, entry in tensors:
        offset = len(body) if entry.offset is None else entry.offset
        out += string(name) + struct.pack("<I", len(entry.ne)) + struct.pack(f"<{len(entry.ne)}Q", *entry.ne)
        out += struct.pack("<IQ", entry.type, offset)
        body += entry.data
        body += bytes(-len(entry.data) % alignment)
    return out + bytes(-len(out) % alignment) + body


def contents(path: Path) -> tuple[dict[str, Any], dict[str, Entry]]:
    """Metadata and tensors of a well-formed file, to be changed and written again by `gguf_bytes`."""
    file = GGUFFile.open(path)
    entries = {
        name: Entry(tensor.shape[::-1], file.raw(name).tobytes(), int(GGMLQuantizationType[tensor.type]))
        for name, tensor in file.tensors.items()
    }
    return dict(file.metadata), entries
