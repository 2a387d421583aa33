"""The largest published model: 92 layers, 512 experts, 128 value heads, 1.5 TB of which nothing is on the disk."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from support.hollow import write_hollow
from trigraph.exporter import describe, export
from trigraph.runtime import load


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
        assert engine.model.name.endswith("2.4t-a95b")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 60
