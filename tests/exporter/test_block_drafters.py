"""Packages with a block drafter: their graphs against the reference, and what they change in the trunk: nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.drafters import KINDS, TARGETS, Drafters, DraftingHost, Features, text
from trigraph.exporter import ExportOptions, export
from trigraph.exporter.package.state_tensors import PAGE_SIZE
from trigraph.models import open_model
from trigraph.models.drafter.drafter import open_drafter
from trigraph.models.drafter.reference import DrafterReference

# Relative to the largest. Features come from a trunk in float32.
TOLERANCE = 2e-5
EXACT: dict[str, Any] = {"kv_type": "f32", "activations": "float32"}
WINDOW = {"window": 70, "sliding": (True, False)}

pytestmark = pytest.mark.usefixtures("operator_library")

VARIANTS: dict[str, dict[str, Any]] = {
    **{f"{kind}, {target}": {"kind": kind, "target": target} for kind in KINDS for target in TARGETS},
    "window": {"kind": "dflash2", **WINDOW},
    "window, causal": {"kind": "dflash", **WINDOW, "causal": (True, True)},
    "causal": {"kind": "dspark", "causal": (True, True)},
    "own embedding and head": {"kind": "dflash", "own": ("token_embd.weight", "output.weight")},
    "own head": {"kind": "dspark", "own": ("output.weight", "conf_proj.weight", "conf_proj.bias")},
    "not from the anchor": {"kind": "dspark", "from_anchor": False},
    "scaled and capped": {"kind": "dflash2", "logit_scale": 0.5, "logit_cap": 3.0},
    "other convolutions": {"kind": "dflash2", "conv_kernel": 2, "conv_group": 16, "block": 5},
    "kernel of the block's length": {"kind": "dflash2", "conv_kernel": 4, "block": 4},
    "last sum, and embeddings": {"kind": "dflash", "taps": (0, 4)},
    "one tap": {"kind": "dflash", "taps": (2,)},
    "partial rotation": {"kind": "dflash", "rope_dims": 32},
    "other heads": {"kind": "dspark", "heads": 6, "kv_heads": 1, "head_dim": 32, "rope_dims": 32},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_reference(tmp_path: Path, synthetic: Any, drafters: Drafters, operator_library: Path, variant: str) -> None:
    """Behind prefills of several lengths, and verifies of which some is rejected."""
    target = VARIANTS[variant].get("target", "tiny-dense")
    source, file = synthetic(target, "F32"), drafters(**VARIANTS[variant])
    export(source, tmp_path / "package", ExportOptions(draft_model=file, **EXACT))
    host, model = DraftingHost(tmp_path / "package", operator_library), open_model(source)
    drafter = open_drafter(file, model.config)
    reference, tokens = DrafterReference(drafter, model, PAGE_SIZE), text(model, 160)
    features = Features(model).of(tokens, drafter.config.taps)
    first = 0 if drafter.config.from_anchor else 1
    for step, count, keep in (("prefill", 37, 37), ("verify", 8, 3), ("prefill", 90, 90), ("verify", 5, 5)):
        piece = tokens[host.length : host.length + count]
        if step == "prefill":
            host.prefill(piece)
        else:
            host.verify(np.concatenate([piece[:keep], piece[keep:] + 1]) % model.config.vocab, keep)
        reference.extend(features[reference.length : host.length])
        for rows in (drafter.config.block, first + 1):
            out, expected = host.draft(int(tokens[host.length]), rows), reference.draft(int(tokens[host.length]), rows)
            np.testing.assert_array_equal(out["candidates"][first:], expected.candidates[first:])
            worst = np.abs(out["edges"] - expected.edges)[first:].max()
            assert worst < TOLERANCE * np.abs(expected.edges[first:]).max(), worst
