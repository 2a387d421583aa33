"""GGUF files with damaged headers: each is a model or a TrigraphError, soon, and without large allocations.

Damage knows the format: values change their type, lengths and counts lie, keys and tensors vanish, repeat or move,
dimensions wrap, offsets lead elsewhere, parts of a split file do not belong together; then single bytes.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from rich.console import Console

from fuzz.damage import INTEGERS, TEXTS, damage_bytes, number
from support.models.gguf_bytes import Entry, Raw, gguf_bytes, string, value
from support.models.random_gguf import Architecture, write_random
from trigraph.exporter import describe, export
from trigraph.models import GGUFFile, open_model
from trigraph.models.tokenizer import chat_template, special_tokens, tokenizer_json

Pairs = list[tuple[str | bytes, Any]]
Tensors = list[tuple[str, Entry]]

_FILES: tuple[tuple[Architecture, dict[str, Any]], ...] = (
    ("qwen35", {}),
    ("qwen35", {"mtp": False, "tied": True}),
    ("qwen35moe", {"dtype": "Q8_0"}),
    ("qwen35moe", {"fused": True, "recurrent": (True, False, True, False)}),
    ("qwen3next", {"types": {"*ffn_down*": "IQ4_NL"}}),
)
_KNOWN_KEYS = (
    "general.alignment", "split.count", "split.no", "split.tensors.count", "tokenizer.chat_template", "general.name",
    "{}.attention.recurrent_layers", "{}.nextn_predict_layers", "{}.rope.scaling.type", "{}.expert_gating_func",
)  # fmt: skip
_EXPORTED = 40  # one of so many files that open is exported too


class Fuzzer:
    """See fuzz.target.Target."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._models = [read(write_random(folder / "m.gguf", name, preset="nano", **how)) for name, how in _FILES]

    def run(self, seed: int, case: int) -> str:
        """Write a damaged file and do with it what our commands do."""
        rng = random.Random(f"{seed}:{case}")
        for leftover in self._folder.glob("case*"):
            leftover.unlink()
        path = self.write(rng)
        model = open_model(path)
        Console(file=io.StringIO()).print(describe(path))
        metadata = model.file.metadata
        tokenizer_json(metadata)
        special_tokens(metadata)
        chat_template(metadata)
        if rng.randrange(_EXPORTED):
            return "opened"
        package = self._folder / "package"
        try:
            export(path, package)
        finally:
            shutil.rmtree(package, ignore_errors=True)
        return "exported"

    def write(self, rng: random.Random) -> Path:
        """A damaged file."""
        pairs, tensors, size = rng.choice(self._models)
        pairs, tensors = pairs.copy(), tensors.copy()
        if rng.random() < 0.05:
            return self._write_parts(rng, pairs, tensors, size)
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
            rng.choice((_damage_pair, _damage_pair, _damage_tensor))(rng, pairs, tensors)
        path = self._folder / rng.choice(("case.gguf", "case", "case-00001-of-00002.gguf"))
        self._put(rng, path, pairs, tensors, size)
        return path

    def _write_parts(self, rng: random.Random, pairs: Pairs, tensors: Tensors, size: int) -> Path:
        """A split file whose parts may contradict each other."""
        count = rng.randint(2, 4)
        paths = [self._folder / f"case-{part + 1:05}-of-{count:05}.gguf" for part in range(count)]
        for part, path in enumerate(paths):
            own: Pairs = [
                ("split.no", part if rng.random() < 0.9 else rng.randrange(count + 1)),
                ("split.count", count if rng.random() < 0.95 else number(rng, 32)),
                ("split.tensors.count", len(tensors) if rng.random() < 0.95 else number(rng, 32)),
            ]
            mine = tensors[part::count] if rng.random() < 0.95 else tensors
            if rng.random() < 0.3:
                rng.choice((_damage_pair, _damage_tensor))(rng, own, mine := mine.copy())
            if rng.random() < 0.98:
                self._put(rng, path, (pairs if part == 0 else []) + own, mine, size)
        return rng.choice(paths)

    def _put(self, rng: random.Random, path: Path, pairs: Pairs, tensors: Tensors, size: int) -> None:
        """Write a header, damage its bytes, and give the file a length; data are a hole."""
        version = rng.choice((0, 1, 2, 4, 3 << 24, number(rng, 32))) if rng.random() < 0.02 else 3
        counts = [number(rng, 64) if rng.random() < 0.02 else None for _ in range(2)]
        header = gguf_bytes(pairs, tensors, version=version, counts=(counts[0], counts[1]))
        if rng.random() < 0.3:
            header = damage_bytes(rng, header)
        path.write_bytes(header)
        if rng.random() < 0.95:
            os.truncate(path, len(header) + size)
        elif rng.random() < 0.5:
            os.truncate(path, rng.randrange(len(header) + size))
        else:
            os.truncate(path, rng.choice((0, 1, 23, 24, 1 << 32, 1 << 40)))


def read(path: Path) -> tuple[Pairs, Tensors, int]:
    """Metadata, tensors without their bytes, and the size of the data."""
    file = GGUFFile.open(path)
    start = file.header_bytes[path]
    tensors = [
        (name, Entry(tensor.shape[::-1], b"", int(GGMLQuantizationType[tensor.type]), (tensor.offset or 0) - start))
        for name, tensor in file.tensors.items()
    ]
    return list(file.metadata.items()), tensors, path.stat().st_size - start


def _damage_pair(rng: random.Random, pairs: Pairs, tensors: Tensors) -> None:
    if not pairs or rng.random() < 0.1:
        architecture = rng.choice(("qwen35", "qwen35moe", "qwen3next"))
        pairs.append((rng.choice(_KNOWN_KEYS).format(architecture), _value(rng)))
        return
    at = rng.randrange(len(pairs))
    key, old = pairs[at]
    match rng.randrange(7):
        case 0:
            del pairs[at]
        case 1:
            pairs.insert(rng.randrange(len(pairs)), (key, rng.choice((old, _value(rng)))))
        case 2:
            pairs[at] = (rng.choice((*TEXTS, b"\xff", rng.choice(pairs)[0])), old)
        case 3 | 4:
            pairs[at] = (key, _near(rng, old))
        case _:
            pairs[at] = (key, _value(rng))


def _near(rng: random.Random, old: Any) -> Any:
    """A value of the same type, so that it passes the first checks."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return rng.choice((old + 1, old - 1, old * 2, old // 2, 1 << rng.randrange(32), number(rng, 32))) % 2**32
    if isinstance(old, float):
        return rng.choice((0.0, -old, float("inf"), float("nan"), 1e-38, 3e38, old * 1e9))
    if isinstance(old, str):
        return rng.choice((*TEXTS, old * 1000, old[: len(old) // 2]))
    if isinstance(old, Raw):
        return Raw(damage_bytes(rng, old.data))
    if rng.random() < 0.2:  # as many items of another type
        return rng.choice(
            (["a"] * len(old), np.full(len(old), np.nan), np.full(len(old), -1, "i8"), np.ones(len(old)) > 0)
        )
    items = list(old)
    match rng.randrange(5):
        case 0:
            items = items[: rng.randrange(len(items) + 1)]
        case 1:
            items *= 2
        case 2:
            items = items[::-1]
        case _ if items:
            at = rng.randrange(len(items))
            items[at] = rng.choice(TEXTS) if isinstance(items[at], str) else items[at - 1]
    return items if isinstance(old, list) else np.array(items, old.dtype)


def _value(rng: random.Random) -> Any:
    """Any value: of any type, and some that are none."""
    match rng.randrange(8):
        case 0:
            return Raw(struct.pack("<I", rng.choice((4, 5, 6))) + struct.pack("<I", number(rng, 32)))
        case 1:
            return Raw(struct.pack("<I", rng.choice((10, 11, 12))) + struct.pack("<Q", number(rng, 64)))
        case 2:
            return Raw(struct.pack("<I", rng.choice((0, 1, 7, 13, 2**32 - 1))) + bytes([rng.randrange(256)]))
        case 3:
            return rng.choice(TEXTS)
        case 4:
            return Raw(struct.pack("<IQ", 8, number(rng, 64)) + b"text")
        case 5:  # an array whose kind and length may lie
            kind, count = rng.choice((0, 4, 6, 7, 8, 9, 10, 12, 99)), rng.choice((0, 1, 4, number(rng, 64)))
            return Raw(struct.pack("<IIQ", 9, kind, count) + rng.randbytes(rng.choice((0, 8, 64))))
        case 6:
            return [rng.choice(TEXTS) for _ in range(rng.randrange(4))]
        case _:  # arrays in arrays
            inner = struct.pack("<IQ", 9, 1) * rng.choice((1, 50, 5000))
            return Raw(value([])[:4] + inner + string("deep"))


def _damage_tensor(rng: random.Random, pairs: Pairs, tensors: Tensors) -> None:
    if not tensors:
        return
    at = rng.randrange(len(tensors))
    name, old = tensors[at]
    ne, kind, offset = list(old.ne) or [1], old.type, old.offset or 0
    match rng.randrange(9):
        case 0:
            del tensors[at]
            return
        case 1:
            tensors.insert(rng.randrange(len(tensors)), (rng.choice((name, name + "x")), old))
            return
        case 2:
            name = rng.choice((*TEXTS, "x" * 2000, rng.choice(tensors)[0], name.replace("0", "7")))
        case 3 | 4:
            ne[rng.randrange(len(ne))] = rng.choice(
                (0, 1, ne[0] * 2, 1 << rng.randrange(64), rng.choice(INTEGERS) % 2**64)
            )
        case 5:
            ne = rng.choice((ne[::-1], [*ne, 1], [1, *ne], [], ne * 9, [1 << 32] * 4, [ne[0], *[1 << 21] * 3]))
        case 6:
            kind = rng.choice((rng.randrange(64), number(rng, 32)))
        case 7:
            offset = rng.choice((offset + 1, offset + 32, 0, rng.randrange(1 << 30) * 32, number(rng, 64)))
        case _:  # a type of the same size a row, or nearly
            kind = rng.choice(
                [int(GGMLQuantizationType[other]) for other in ("F16", "BF16", "I16", "Q8_0", "IQ2_XXS", "F64")]
            )
    tensors[at] = (name, Entry(tuple(size % 2**64 for size in ne), b"", kind, offset % 2**64))
