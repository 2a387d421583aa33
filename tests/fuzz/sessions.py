"""Damaged session files: a model goes on from each, or refuses it with a TrigraphError.

Damage knows the file: its metadata, the table of tensors, and their numbers, mostly with checksums that fit; then any
bytes.
"""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.damage import damage_bytes, damage_json, number
from support.models.random_gguf import write_random
from trigraph.exporter import ExportOptions, export
from trigraph.runtime import Options, Sampling, load

_TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
_OPTIONS = Options(Sampling(temperature=0.0), max_tokens=6, draft_tokens=2, ignore_eos=True)
_PROMPT = [1, 2, 3, 4, 5]
_DTYPES = {"F16": np.float16, "F32": np.float32, "I64": np.int64}


class Fuzzer:
    """See fuzz.target.Target."""

    def __init__(self, folder: Path) -> None:
        source = write_random(folder / "model.gguf", "qwen35", preset="nano")
        export(source, folder / "package", ExportOptions(weights="reference"))
        (folder / "package/chat_template.jinja").write_text(_TEMPLATE)
        self._engine = load(folder / "package", threads=1, context=300)
        self._path = folder / "case"
        chat = self._engine.chat("Be brief.")
        for _ in chat.say("Hello", _OPTIONS):
            pass
        chat.save(folder / "chat")
        for prompt in (_PROMPT, [*_PROMPT, 6, 7]):
            self._engine.generate(prompt, _OPTIONS, folder / "prompt").run()
        self._chat, self._prompt = (folder / "chat").read_bytes(), (folder / "prompt").read_bytes()

    def run(self, seed: int, case: int) -> str:
        """Damage a session file and go on from it; whatever becomes of that, no slot and no page is lost."""
        rng = random.Random(f"{seed}:{case}")
        state = self._engine.steps.state
        is_chat = rng.random() < 0.5
        self._path.write_bytes(_damaged(rng, self._chat if is_chat else self._prompt))
        try:
            if is_chat:
                self._talk()
            else:
                self._engine.generate([*_PROMPT, rng.choice((6, 8)), 7], _OPTIONS, self._path).run()
        finally:
            self._engine.cache.clear()
            if (state.slots.free, state.pages.free) != (state.slots.size, state.pages.size):
                raise RuntimeError("state was lost")
        return "ran"

    def _talk(self) -> None:
        chat = self._engine.chat()
        chat.load(self._path)
        for _ in chat.say("And now?", _OPTIONS):
            pass
        chat.save(self._path)


def _damaged(rng: random.Random, content: bytes) -> bytes:
    if rng.random() < 0.2:
        return damage_bytes(rng, content)
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
    fits = rng.random() < 0.9
    match rng.randrange(4):
        case 0 | 1:
            _damage_metadata(rng, header["__metadata__"], fits)
        case 2:
            name = rng.choice([name for name in header if name != "__metadata__"])
            header[name] = damage_json(rng, header[name])
        case _:
            _damage_numbers(rng, header, data, fits)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)


def _damage_metadata(rng: random.Random, metadata: dict[str, Any], fits: bool) -> None:
    key = rng.choice(("model", "checkpoints", "checkpoints", "messages", "format", "version"))
    if key in ("format", "version"):
        metadata[key] = rng.choice(("", "2", "trigraph package", "x" * 70000))
    else:
        metadata[key] = json.dumps(damage_json(rng, json.loads(metadata[key])))
    if fits:
        del metadata["crc32"]
        metadata["crc32"] = str(zlib.crc32(json.dumps(metadata, sort_keys=True).encode()))


def _damage_numbers(rng: random.Random, header: dict[str, Any], data: bytearray, fits: bool) -> None:
    """Other numbers in a tensor: any bits, so infinities and NaN as well; token ids that are none."""
    names = sorted(name for name in header if name not in ("__metadata__", "crc32"))
    name = rng.choice(("tokens", rng.choice(names), rng.choice([name for name in names if "gdn" in name])))
    begin, end = header[name]["data_offsets"]
    values = np.frombuffer(bytes(data[begin:end]), _DTYPES[header[name]["dtype"]]).copy()
    for _ in range(rng.choice((1, 1, 100))):
        at = rng.randrange(len(values))
        if values.dtype == np.int64:
            values[at] = number(rng, 63)
        else:
            values[at] = rng.choice((0.0, -1.0, 1e30, np.inf, np.nan, rng.gauss(0, 10)))
    data[begin:end] = values.tobytes()
    if fits:
        sums = header["crc32"]["data_offsets"][0] + 8 * names.index(name)
        data[sums : sums + 8] = zlib.crc32(values.tobytes()).to_bytes(8, "little")
