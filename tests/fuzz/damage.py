"""Damage that does not depend on the format: extreme numbers and texts, bytes, JSON documents."""

from __future__ import annotations

import copy
import random
import struct
from typing import Any

INTEGERS = (
    0, 1, 2, 7, 8, 255, 256, 32767, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**53, 2**61 + 1, 2**62,
    2**63 - 1, 2**63, 2**64 - 1, -1, -2, -(2**31), -(2**63),
)  # fmt: skip
TEXTS = (
    "", " ", "a", "\0", "\n", "a\nb\r\n", "../../etc/passwd", "/etc/passwd", "C:\\windows", "%s%n", "{}", "{{ x }}",
    "é",
    "\u202e", "\ufeff", "🙂", "x" * 300, "x" * 70000, "nan", "1e999", "true", "null", "qwen35", "\x1b[31m",
    "[/red]", "[bold",
)  # fmt: skip


def number(rng: random.Random, bits: int) -> int:
    """An unsigned number of so many bits: extreme, near a power of two, or any."""
    return rng.choice((*INTEGERS, (1 << rng.randrange(bits)) + rng.randint(-1, 1), rng.getrandbits(bits))) % (1 << bits)


def damage_bytes(rng: random.Random, content: bytes) -> bytes:
    """Change a few bytes: single ones, whole words, pieces cut out, repeated or moved, or the end."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not data:
            break
        at = rng.randrange(len(data)) if rng.random() < 0.5 else rng.randrange(min(len(data), 1500))
        length = rng.choice((1, 2, 4, 8, 100))
        match rng.randrange(7):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                data[at : at + 8] = struct.pack("<Q", number(rng, 64))
            case 3:
                data[at : at + 4] = struct.pack("<I", number(rng, 32))
            case 4:
                del data[at : at + length]
            case 5:
                start = rng.randrange(len(data))
                data[at:at] = data[start : start + length]
            case _:
                if rng.random() < 0.3:
                    del data[at:]
                else:
                    data[at:at] = rng.randbytes(length)
    return bytes(data)


def damage_json(rng: random.Random, document: Any) -> Any:
    """Change one place of a JSON document (in place); returns the document, which may be another one."""
    places = list(_places(document))
    if not places or rng.random() < 0.01:
        return _any_value(rng, document)
    container, key = rng.choice(places)
    match rng.randrange(7):
        case 0:
            del container[key]
        case 1:
            other, other_key = rng.choice(places)
            container[key] = copy.deepcopy(other[other_key])
        case 2 if isinstance(container, dict):
            container[rng.choice(TEXTS)] = container.pop(key)
        case 2:
            container.insert(key, container[key])
        case 3 | 4:
            container[key] = _near_value(rng, container[key])
        case _:
            container[key] = _any_value(rng, container[key])
    return document


def _places(node: Any) -> Any:
    """Every (container, key) of a document, few of each long list."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for index, (key, child) in enumerate(items):
        if index < 60:
            yield node, key
            yield from _places(child)


def _near_value(rng: random.Random, old: Any) -> Any:
    if isinstance(old, bool):
        return not old
    if isinstance(old, (int, float)):
        return rng.choice((old + 1, old - 1, old * 2, -old, float(old), *INTEGERS))
    if isinstance(old, str):
        return rng.choice((*TEXTS, old + "x", old[:-1], "../" + old, "/" + old, old.upper()))
    if isinstance(old, list):
        return rng.choice(([], old[:-1], old * 2, old[::-1]))
    return old


def _any_value(rng: random.Random, old: Any) -> Any:
    deep: Any = 0
    for _ in range(rng.choice((1, 60))):
        deep = [deep]
    return rng.choice(
        (None, True, False, 0.5, 1e308, float("inf"), float("nan"), [], {}, {"a": 1}, [old], {"a": old}, deep,
         rng.choice(INTEGERS), rng.choice(TEXTS))
    )  # fmt: skip
