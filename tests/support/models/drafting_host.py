"""A host that drafts with a block drafter, and what the drafter reads of its model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from support.host import Host
from trigraph.models import Model, open_model
from trigraph.models.reference import Reference, State
from trigraph.models.reference_layers import Array, Rotation


class _Streams(Reference):
    """Keeps what enters each layer, and leaves the last."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.found: list[Array] = []

    def _block(self, layer: int, recurrent: bool, x: Array, state: State, turn: Rotation) -> Array:
        out = super()._block(layer, recurrent, x, state, turn)
        self.found = [*(self.found or [x]), out]
        return out


@cache
def _streams(source: Path, length: int) -> list[Array]:
    reference = _Streams(model := open_model(source))
    reference.trunk(text(model, length))
    return reference.found


def features(source: Path, length: int, taps: Sequence[int]) -> Array:
    """What a drafter reads of the model's random text [length, taps x hidden]."""
    return np.concatenate([_streams(source, length)[tap] for tap in taps], axis=-1)


class DraftingHost(Host):
    """One sequence in a slot and all pages, in an order that is not theirs."""

    def __init__(self, package: Path, library: Path) -> None:
        super().__init__(package, library, pages=8)
        assert self.manifest.drafter is not None
        self.drafter, self.length, self._accepted = self.manifest.drafter, 0, 0
        self.slot, self.table = 0, [5, 2, 7, 0, 3, 1, 6, 4]

    def prefill(self, tokens: npt.NDArray[np.int64], **more: Any) -> dict[str, npt.NDArray[Any]]:
        hidden = np.zeros((1, self.manifest.config.hidden))
        out = self.run(
            "prefill", input_ids=tokens, prev_hidden=hidden, **self._step(len(tokens)), **self._slots(), **more
        )
        self.length, self._accepted = self.length + len(tokens), 0
        return out

    def verify(self, tokens: npt.NDArray[np.int64], keep: int) -> dict[str, npt.NDArray[Any]]:
        """Of the tokens the first `keep` are accepted."""
        out = self.run("verify", input_ids=tokens, **self._step(len(tokens)), **self._slots())
        self.length, self._accepted = self.length + keep, keep
        return out

    def draft(self, token: int, rows: int, **more: Any) -> dict[str, npt.NDArray[Any]]:
        """The outputs for a block behind a known token, which is not in the state yet."""
        return self.run("block", input_ids=block(token, rows, self.drafter.mask), **self._step(rows), **more)

    def _step(self, tokens: int) -> dict[str, Any]:
        return {"cu_seqlens": [0, tokens], "past_lens": [self.length], **self.tables()}

    def tables(self) -> dict[str, Any]:
        """Pages, and the slot wherever a ring is asked for."""
        return {"page_table": [self.table], "ring_table": [[self.slot] * len(self.table)]}

    def _slots(self) -> dict[str, Any]:
        return {"accepted": [self._accepted], "slots_in": [self.slot], "slots_out": [self.slot]}


def block(token: int, rows: int, mask: int) -> list[int]:
    """A known token and masks."""
    return [token] + [mask] * (rows - 1)


def text(model: Model, length: int) -> npt.NDArray[np.int64]:
    """Random tokens."""
    return np.random.default_rng(0).integers(0, model.config.vocab, length)
