"""Graphs of packages with a block drafter against llama.cpp, from token ids on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from support.models.drafters import KINDS, TARGETS, Drafters
from support.models.drafting_host import DraftingHost, text
from support.oracles.llama_drafter import LlamaDrafter
from trigraph.exporter import ExportOptions, export
from trigraph.models import open_model
from trigraph.models.drafter.config import BlockDrafterConfig

# Relative to the largest.
TOLERANCE = 2e-5
LENGTHS = (37, 40, 45, 70, 71, 130)
"""Of the text that was committed when a block is drafted."""
VARIANTS: dict[str, dict[str, Any]] = {
    **{f"{kind}, {target}": {"kind": kind, "target": target} for kind in KINDS for target in TARGETS},
    **{
        f"{kind}, causal": {"kind": kind, "window": 200, "sliding": (True, False), "causal": (True, True)}
        for kind in KINDS
    },
    "own embedding and head": {"kind": "dflash", "own": ("token_embd.weight", "output.weight")},
    "long block": {"kind": "dflash2", "block": 16, "candidates": 15, "conv_kernel": 4, "conv_group": 64},
    "capped": {"kind": "dflash2", "logit_cap": 30.0},
    "not from the anchor": {"kind": "dspark", "from_anchor": False, "block": 7},
}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator_library")]

Rows = npt.NDArray[np.floating[Any]]


@pytest.mark.parametrize("variant", VARIANTS)
def test_llama_cpp(tmp_path: Path, synthetic: Any, drafters: Drafters, operator_library: Path, variant: str) -> None:
    """All scores that a walk along the best tokens meets, and the tokens."""
    source, file = synthetic(VARIANTS[variant].get("target", "tiny-dense"), "F32"), drafters(**VARIANTS[variant])
    options = ExportOptions(draft_model=file, kv_type="f32", activations="float32")
    config = export(source, tmp_path / "package", options).drafter
    assert config is not None
    host, model = DraftingHost(tmp_path / "package", operator_library), open_model(source)
    tokens, drafts = text(model, LENGTHS[-1] + 1), 0
    with closing(LlamaDrafter(source, file, config, model.config.vocab, tokens.tolist())) as llama:
        for length in LENGTHS:
            host.prefill(tokens[host.length : length])
            llama.follow(length)
            for rows in (config.block, config.block - 2):
                out, theirs = host.draft(int(tokens[length]), rows), llama.draft(int(tokens[length]), rows)
                for ours, expected in walk(out, *theirs, config):
                    assert np.abs(ours - expected).max() < TOLERANCE * np.abs(expected).max()
                    assert ours.argmax() == expected.argmax()
                    drafts += 1
    assert drafts == len(LENGTHS) * (2 * config.most_drafts - 2)


def walk(out: dict[str, Rows], logits: Rows, extra: Rows, config: BlockDrafterConfig) -> Iterator[tuple[Rows, Rows]]:
    """Along our best tokens, the scores of each drafting row's candidates, and llama.cpp's."""
    before, theirs_before, count = 0, 0, config.candidates
    for row in range(0 if config.from_anchor else 1, len(logits)):
        candidates, edges = out["candidates"][row], out["edges"][row]
        ours, expected = edges[min(before, len(edges) - 1)], logits[row, candidates]
        before = int(ours.argmax())
        if config.kind == "dflash2":  # the candidates in an order of their own
            order = [extra[row, :count].tolist().index(token) for token in candidates]
            scores = extra[row, count : count + count * count].reshape(count, count)
            expected, theirs_before = scores[theirs_before, order], order[before]
        yield ours, expected
