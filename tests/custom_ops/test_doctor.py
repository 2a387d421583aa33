"""The recorded bits are computed on every instruction set; a machine that computes others is told so."""

import dataclasses
import json
from pathlib import Path

import pytest

from support.command import Run
from trigraph import custom_ops
from trigraph.custom_ops import instruction_sets
from trigraph.exporter import export
from trigraph.exporter.package.manifest import CONTRACT_VERSION
from trigraph.models.errors import TrigraphError
from trigraph.models.synth import write_synthetic
from trigraph.runtime.device.repack.weights import SIDE_BY_SIDE
from trigraph.runtime.doctor import examine
from trigraph.runtime.doctor.bits import package_bits


@pytest.mark.slow
def test_every_instruction_set_agrees_with_the_record(trigraph: Run) -> None:
    found = trigraph("doctor", "--json")
    report = json.loads(found.out)
    assert (found.status, report["agrees"]) == (0, True), report["findings"]
    assert [finding["kernels"] for finding in report["findings"]] == list(instruction_sets())
    assert instruction_sets()[-1] == "portable"
    for finding in report["findings"]:
        assert finding["weights"] == (["plain", "repacked"] if finding["kernels"] in SIDE_BY_SIDE else ["plain"])


@pytest.fixture
def one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with one instruction set, and a package to examine it with."""
    write_synthetic("tiny-dense", tmp_path / "model.gguf", quant="Q8_0")
    export(tmp_path / "model.gguf", tmp_path / "package")
    monkeypatch.setattr(examine, "instruction_sets", lambda: instruction_sets()[:1])
    monkeypatch.setattr(examine, "make_packages", lambda folder: {"the model": tmp_path / "package"})
    return tmp_path / "package"


def record(monkeypatch: pytest.MonkeyPatch, path: Path, bits: object, version: int = CONTRACT_VERSION) -> None:
    path.write_text(json.dumps({"contract_version": version, "bits": bits}))
    monkeypatch.setattr(examine, "RECORD", path)


def test_what_differs_is_named(trigraph: Run, one_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bits = dict(package_bits(one_model))
    record(monkeypatch, tmp_path / "record.json", {"the model": bits})
    assert trigraph("doctor").status == 0
    record(monkeypatch, tmp_path / "record.json", {"the model": bits | {"drafts": "0", "KV": "1"}})
    found = trigraph("doctor")
    assert found.status == 1
    assert (
        f"{instruction_sets()[0]}  differs in drafts of the model, weights plain, KV of the model, weights plain"
        in found.out
    )


def test_kernels_that_do_not_run_are_named(
    trigraph: Run, one_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(monkeypatch, tmp_path / "record.json", {"the model": {}})
    (one_model / "verify.onnx").unlink()
    found = trigraph("doctor")
    assert found.status == 1
    assert f"{instruction_sets()[0]}  does not run: " in found.out and "verify.onnx" in found.out


def test_sets_that_the_build_leaves_out_are_named(
    trigraph: Run, one_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(monkeypatch, tmp_path / "record.json", {"the model": dict(package_bits(one_model))})
    monkeypatch.setattr(examine, "absent_sets", lambda: ("avx9", "sse9"))
    found = trigraph("doctor")
    assert found.status == 0 and "not in this build: avx9, sse9; build all with `make .venv/.test`" in found.out
    monkeypatch.setattr(custom_ops, "absent_sets", lambda: ("avx9", "sse9"))
    monkeypatch.setenv("TRIGRAPH_ISA", "avx9")
    with pytest.raises(TrigraphError, match="TRIGRAPH_ISA=avx9: this build has left that set out; build all with"):
        custom_ops.instruction_set.__wrapped__()
    monkeypatch.setenv("TRIGRAPH_ISA", "avx8")
    with pytest.raises(TrigraphError, match="TRIGRAPH_ISA=avx8: this processor has no such instruction set"):
        custom_ops.instruction_set.__wrapped__()


def test_a_record_of_another_contract_is_no_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(monkeypatch, tmp_path / "record.json", {}, version=1)
    with pytest.raises(TrigraphError, match="the bits of contract version 1 are recorded"):
        examine.examine()


def test_a_finding_agrees_when_it_was_computed_and_nothing_differs() -> None:
    finding = examine.Finding("avx2")
    assert finding.agrees
    assert not dataclasses.replace(finding, differs=("logits of a model",)).agrees
    assert not dataclasses.replace(finding, problem="no library").agrees
