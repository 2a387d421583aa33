"""A block drafter for the fake model: candidates that are right, or wrong, as a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trigraph.models.drafter.config import BlockDrafterConfig

Logits = Callable[[tuple[int, ...]], np.ndarray]

BLOCK, CANDIDATES = 4, 3
KINDS = ("dflash", "dflash2", "dspark")


def drafter_config(kind: str = "dflash2", block: int = BLOCK, mask: int = 0, window: int = 0) -> BlockDrafterConfig:
    """A drafter of that kind, which slides where it has a window; what only graphs depend on is made up."""
    return BlockDrafterConfig(
        name="fake",
        kind=kind,
        block=block,
        mask=mask,
        from_anchor=kind == "dspark",
        candidates=CANDIDATES,
        taps=(0,),
        layers=1,
        hidden=2,
        heads=1,
        kv_heads=1,
        head_dim=2,
        rope_dims=2,
        rope_theta=1.0,
        rms_eps=1e-6,
        ffn=2,
        window=window,
        sliding=(window > 0,),
        causal=(False,),
        conv_kernel=0,
        conv_group=0,
        rank=0,
        logit_scale=1.0,
        logit_cap=0.0,
    )


@dataclass
class FakeBlocks:
    """Offers the most likely tokens after a history, with their logits, except after those that are `wrong`.

    The candidates of a row follow the best ones of the rows before. Those of a kind with edges know whether the best
    one was taken: after another one their scores are others.
    """

    next_logits: Logits
    config: BlockDrafterConfig
    wrong: Callable[[tuple[int, ...]], bool] = lambda history: False

    def outputs(self, rows: int) -> dict[str, Any]:
        """What the draft graph gives for so many rows."""
        config = self.config
        return {
            "candidates": np.zeros((rows, config.candidates), np.int64),
            "edges": np.zeros((rows, config.predecessors, config.candidates), np.float32),
        }

    def draft(
        self,
        committed: tuple[int, ...],
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
        rows: slice,
    ) -> None:
        """Fills in the rows of a sequence with these tokens."""
        config, ids = self.config, inputs["input_ids"][rows].tolist()
        assert ids[1:] == [config.mask] * (config.block - 1)
        history = (*committed, ids[0])
        for row in range(rows.start + (not config.from_anchor), rows.stop):
            logits = self.next_logits(history)
            best = np.argsort(-logits, kind="stable")[: config.candidates]
            scores = logits[best]
            if self.wrong(history):
                scores = scores[::-1]
            outputs["candidates"][row] = best
            outputs["edges"][row] = scores[::-1]  # after another one than the best
            outputs["edges"][row, 0] = scores
            history = (*history, int(best[0]))
