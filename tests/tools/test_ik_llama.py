"""ik_llama.cpp beside trigraph, in a process of its own."""

from pathlib import Path

import pytest

from peers.ik_llama import IkLlama
from trigraph.exporter import ExportOptions, export
from trigraph.models.errors import TrigraphError
from trigraph.models.model import open_model
from trigraph.models.synth import write_synthetic
from trigraph.runtime.bench import BenchOptions, bench
from versus import STEP_PEERS


@pytest.fixture(scope="module")
def trunk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without an MTP head."""
    path = tmp_path_factory.mktemp("trunk") / "trunk.gguf"
    write_synthetic("tiny-moe", path, quant="Q8_0", mtp=False)
    return path


def test_a_synthetic_file_may_have_no_mtp_head(trunk: Path) -> None:
    model = open_model(trunk)
    assert (model.config.mtp_layers, model.config.trunk_layers) == (0, 4)
    assert not any(name.startswith("blk.4.") for name in model.file.tensors)


def test_against_ik_llama(trunk: Path, tmp_path: Path, operator_library: Path) -> None:
    pytest.importorskip("ik_llama_cpp", reason="ik-llama-cpp-python is not installed: nothing to compare with")
    export(trunk, tmp_path / "package", ExportOptions())
    engines = ("ik_llama", "ik_llama-rtr")
    options = BenchOptions(prompt=8, tokens=0, verify_tokens=(1, 2), repetitions=2)
    results = bench(tmp_path / "package", options, [STEP_PEERS[name].open for name in engines]).results
    kinds = {(r.engine, r.name) for r in results}
    assert kinds == {(e, n) for e in ("trigraph", *engines) for n in ("prefill", "decode", "verify")}
    assert all(r.min_ms > 0 for r in results)


def test_what_ik_llama_cannot_do_is_an_error(trunk: Path, tmp_path: Path) -> None:
    pytest.importorskip("ik_llama_cpp", reason="ik-llama-cpp-python is not installed: nothing to compare with")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with pytest.raises(TrigraphError, match=r"broken\.gguf: ik_llama: it cannot load this file"):
        IkLlama(tmp_path / "broken.gguf", 1, 64, 32, repack=False)
    engine = IkLlama(trunk, 1, 64, 32, repack=False)
    try:
        with pytest.raises(TrigraphError, match="ik_llama: llama_decode failed"):
            engine.prefill([5] * 1000)
        engine.reset()
        assert engine.verify([5]) > 0
    finally:
        engine.close()
