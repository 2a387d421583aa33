"""The largest published model: 92 layers, 512 experts, 128 value heads, 1.5 TB of which nothing is on the disk."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from support.models.hollow import write_hollow
from trigraph.exporter import describe, export
from trigraph.models import open_model
from trigraph.models.geometries import GEOMETRIES
from trigraph.models.synth import write_synthetic
from trigraph.models.synth.layout import tensors
from trigraph.runtime import load


def test_every_parameter_of_the_largest_model() -> None:
    """As many as its publisher's index of weights counts, so all that this number depends on is as published."""
    shapes = {tensor.name: tensor.count for tensor in tensors(GEOMETRIES["qwen3.8-2.4t-a95b"], "Q4_K_M")}
    assert sum(shapes.values()) == 2_446_182_725_504


def test_hollow_files_take_no_disk(tmp_path: Path) -> None:
    """Matrices are zeros; everything that is small is as in a file with them."""
    whole, hollow = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_synthetic("tiny-moe", whole)
    write_synthetic("tiny-moe", hollow, hollow=True)
    assert hollow.stat().st_size == whole.stat().st_size
    assert hollow.stat().st_blocks * 512 < whole.stat().st_blocks * 512 / 4
    models = [open_model(whole), open_model(hollow)]
    for name, tensor in models[0].tensors.items():
        expected = models[0].raw(name) if len(tensor.shape) == 1 and "gate_inp" not in name else 0
        np.testing.assert_array_equal(models[1].raw(name), expected)


@pytest.mark.slow
def test_inspect_export_and_load(tmp_path: Path) -> None:
    """Of the weights nothing is read: what it takes depends on the number of tensors alone."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    source = write_hollow("qwen3.8-2.4t-a95b", tmp_path / "model.gguf")
    assert source.stat().st_size > 1.5e12 and source.stat().st_blocks * 512 < 64e6
    found = describe(source)
    assert found.layers == {"Gated DeltaNet": 69, "full attention": 23} and found.mtp
    export(source, tmp_path / "package")
    graphs = [path.stat().st_size for path in (tmp_path / "package").glob("*.onnx")]
    assert len(graphs) == 3 and sum(graphs) < 4e6
    with load(tmp_path / "package", context=512, sequences=1, threads=1) as engine:
        assert len(engine.tokenizer.encode("Once")) and engine.model.no_draft is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 60
