"""Random block drafters for small models, and a host that drafts with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from support.host import Host
from trigraph.models import Model
from trigraph.models.drafter.geometries import DrafterGeometry, drafter_geometry
from trigraph.models.model import open_model
from trigraph.models.reference import Reference, State
from trigraph.models.reference_layers import Array, Rotation
from trigraph.models.synth.drafter import write_drafter

KINDS = ("dflash", "dflash2", "dspark")
TARGETS = ("tiny-dense", "tiny-moe", "tiny-next")


class Drafters:
    """`drafters("dflash2", "tiny-moe", window=70)` -> file; made once a test run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, kind: str, target: str = "tiny-dense", own: tuple[str, ...] = (), **changes: Any) -> Path:
        """`own`: the optional tensors that it has. `changes`: fields of BlockDrafterConfig."""
        name = "-".join([kind, target, *own, *(f"{key}={value}" for key, value in changes.items())])
        path = self._folder / f"{name.replace(' ', '')}.gguf"
        if not path.exists():
            shape = drafter_geometry(f"{kind}-{target}")
            write_drafter(DrafterGeometry(replace(shape.config, **changes), shape.target), path, own=own)
        return path


def drafter_of(model: Path, path: Path, kind: str) -> Path:
    """A drafter of any model's file, which reads what enters its second layer and what leaves its last; made once."""
    if not path.exists():
        config, shape = open_model(model).config, drafter_geometry(f"{kind}-tiny-dense")
        own = replace(shape.config, hidden=config.hidden, taps=(1, config.trunk_layers), mask=config.vocab - 1)
        write_drafter(DrafterGeometry(own, replace(shape.target, hidden=config.hidden, vocab=config.vocab)), path)
    return path


class Features(Reference):
    """What enters each layer of a model, and leaves the last."""

    def of(self, tokens: npt.NDArray[np.int64], taps: Sequence[int]) -> Array:
        """Side by side [T, taps x hidden]."""
        self._streams: list[Array] = []
        self.trunk(tokens)
        return np.concatenate([self._streams[tap] for tap in taps], axis=-1)

    def _block(self, layer: int, recurrent: bool, x: Array, state: State, turn: Rotation) -> Array:
        out = super()._block(layer, recurrent, x, state, turn)
        self._streams = [*(self._streams or [x]), out]
        return out


class DraftingHost(Host):
    """One sequence in slot 0 and all pages, in an order that is not theirs."""

    def __init__(self, package: Path, library: Path) -> None:
        super().__init__(package, library, pages=8)
        assert self.manifest.drafter is not None
        self.drafter, self.length, self._accepted = self.manifest.drafter, 0, 0
        self.table = [5, 2, 7, 0, 3, 1, 6, 4]

    def prefill(self, tokens: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
        hidden = np.zeros((1, self.manifest.config.hidden))
        out = self.run("prefill", input_ids=tokens, prev_hidden=hidden, **self._step(len(tokens)), **self._slots())
        self.length, self._accepted = self.length + len(tokens), 0
        return out

    def verify(self, tokens: npt.NDArray[np.int64], keep: int) -> dict[str, npt.NDArray[Any]]:
        """Of the tokens the first `keep` are accepted."""
        out = self.run("verify", input_ids=tokens, **self._step(len(tokens)), **self._slots())
        self.length, self._accepted = self.length + keep, keep
        return out

    def draft(self, token: int, rows: int) -> dict[str, npt.NDArray[Any]]:
        """The outputs for a block behind a known token, which is not in the state yet."""
        return self.run("draft", input_ids=block(token, rows, self.drafter.mask), **self._step(rows))

    def _step(self, tokens: int) -> dict[str, Any]:
        return {"cu_seqlens": [0, tokens], "past_lens": [self.length], "page_table": [self.table]}

    def _slots(self) -> dict[str, Any]:
        return {"accepted": [self._accepted], "slots_in": [0], "slots_out": [0]}


def block(token: int, rows: int, mask: int) -> list[int]:
    """A known token and masks."""
    return [token] + [mask] * (rows - 1)


def text(model: Model, length: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Random tokens."""
    return np.random.default_rng(seed).integers(0, model.config.vocab, length)
