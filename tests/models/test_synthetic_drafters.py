"""Synthetic block drafters: structure, sizes, and models that they fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trigraph.models import TrigraphError, open_model
from trigraph.models.drafter.drafter import open_drafter
from trigraph.models.drafter.geometries import DRAFTER_GEOMETRIES, drafter_geometry
from trigraph.models.synth import write_synthetic, write_synthetic_drafter
from trigraph.models.synth.drafter import drafter_tensors


@pytest.mark.parametrize(("quant", "size"), [("Q8_0", 2_056_414_752), ("BF16", 3_860_293_152)])
def test_real_sizes_of_drafters(quant: str, size: int) -> None:
    """Of DFlash2 for Qwen3.8-27B: what published files have in addition is as much in both, their tokenizer."""
    found = sum(tensor.nbytes for tensor in drafter_tensors(drafter_geometry("dflash2-qwen3.8-27b"), quant))
    assert size - found == 10_949_152


def test_drafters(tmp_path: Path) -> None:
    """They open with their models, cut down with them or not."""
    for name, (target, _) in DRAFTER_GEOMETRIES.items():
        if "tiny" in name:
            write_synthetic(target, tmp_path / "model.gguf", quant="Q8_0")
            write_synthetic_drafter(name, tmp_path / "drafter.gguf", quant="F32")
            drafter = open_drafter(tmp_path / "drafter.gguf", open_model(tmp_path / "model.gguf").config)
            config = drafter_geometry(name).config
            eps = float(np.float32(config.rms_eps))  # as files state it
            assert drafter.config == replace(config, name=f"synthetic-{config.name}", rms_eps=eps)
            weights = drafter.array("drafter.blk.0.ffn_up.weight")
            assert np.sqrt(np.mean(weights**2)) == pytest.approx(256**-0.5, rel=0.02)
    write_synthetic("tiny-moe", tmp_path / "model.gguf", layers=2, vocab=300, quant="Q8_0")
    write_synthetic_drafter("dspark-tiny-moe", tmp_path / "drafter.gguf", layers=2, vocab=300)
    cut = open_drafter(tmp_path / "drafter.gguf", open_model(tmp_path / "model.gguf").config).config
    assert (cut.taps, cut.mask, cut.layers) == ((1, 1), 299, 2)
    with pytest.raises(TrigraphError, match="unknown quant 'Q5_K_M'; those of drafters are Q8_0"):
        write_synthetic_drafter("dflash-tiny-moe", tmp_path / "d", quant="Q5_K_M")
    with pytest.raises(TrigraphError, match="unknown geometry 'tiny-moe'; the known ones are dflash2-qwen3"):
        write_synthetic_drafter("tiny-moe", tmp_path / "d")
