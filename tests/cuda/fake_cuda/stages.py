"""Stages of tools/gpu.py from one end to the other, with models of a few layers. Nothing is computed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gpu
import onnxruntime as ort
import pytest

import gpu_stages
from gpu_expected import EXPECTED
from gpu_provider import make_stand_ins
from gpu_runs import BITS, RUNS
from gpu_session import MODELS, Session
from gpu_stages import DEAREST, STAGES
from support.models.hollow import write_hollow

FEW = 4
PAGE = "  Duration   us   24.91\n  Registers Per Thread   register/thread   115\n"
"""Of ncu."""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("gpu")
    for geometry in MODELS.values():
        write_hollow(geometry, folder / f"{geometry}-{FEW}.gguf", layers=FEW)
    program = Path(os.environ["TRIGRAPH_LIBRARY_DIR"], "gpu_kernels")
    return Session(folder / "out", folder, FEW, program, ("small",))


def _found(session: Session, name: str) -> list[str]:
    """What the rows of a stage are called that passes."""
    session.rows.clear()
    assert gpu.passes(session, name, STAGES[name], 20, float("inf")), session.rows
    assert {row.stage for row in session.rows} == {name}
    return [row.what for row in session.rows]


@pytest.mark.parametrize("name", ["35b", "12gb", "27b", "8gb", "parts", "layers", "requests", "long"])
def test_a_model(session: Session, name: str) -> None:
    """Each word of its work, and all that is predicted of it, has a row."""
    found = _found(session, name)
    assert len(found) >= len(RUNS[name].work.split()) + 2
    assert {what for stage, what in EXPECTED if stage == name} <= {*found}
    assert ("a token, as the start expects" in found) == (name in ("12gb", "8gb", "parts", "layers", "requests"))


def test_bits(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of recorded models, which nobody computes here, are wrong, and that is told; the others are right."""
    monkeypatch.setattr(gpu_stages, "_ways", lambda: {"as it is": {}})
    session.rows.clear()
    assert not gpu.passes(session, "bits", STAGES["bits"], 20, float("inf"))
    recorded, *found, kernels, agree, failed, _ = session.rows
    assert "first logits of the trained model" in recorded.text and recorded.what.endswith("as it is: FAILED")
    hashes = [row.text for row in found if row.what.endswith("hash")]
    assert len(hashes) == len(BITS) and len({*hashes}) == 1
    assert kernels.figures[0] == kernels.figures[1] > 100 and agree.text == "agrees"
    assert failed.text == "wrong as it is: recorded bits (right: with no variant)"


def test_kernels(session: Session) -> None:
    """The case of each kernel that is predicted or counted is there."""
    found = {what.partition(": ")[2] for what in _found(session, "kernels")}
    predicted = {what.partition(": ")[2] for stage, what in EXPECTED if stage == "kernels"}
    assert predicted - {"gate and up, prepared", "norm and gate and up"} <= found  # of dense models
    assert {case for name, _, case, _ in DEAREST if name == "35b"} <= found


def test_what_a_pack_has_in_place_of_libraries(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step runs with stand-ins of cuBLAS, and where registrations go through the library for small providers."""
    make_stand_ins(Path(ort.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so", tmp_path)
    for name in ("libcudart.so.13", "libcuda.so.1"):
        shutil.copy(Path(os.environ["LD_LIBRARY_PATH"], name), tmp_path)
    preloaded = tmp_path / "provider.so"
    source = Path(gpu.__file__).with_name("gpu_provider.c")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(preloaded), "-ldl"], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    environment = {"LD_PRELOAD": str(preloaded)}
    path = session.model("35b")
    command = (sys.executable, Path(gpu.__file__).with_name("gpu_model.py"), path, "decode", "--after", "16")
    assert [json.loads(line)["what"] for line in session.lines(*command, environment=environment)][-1] == "decode"


def test_variants(session: Session) -> None:
    """All run but those with a library of their own."""
    found = _found(session, "variants")
    assert "as it is, few: decode" in found and "no early launches: SKIPPED" in found
    assert sum("prompt of 2048" in what for what in found) == 2


def _program(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """Puts a program on PATH."""
    (program := folder / name).write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_counters(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that cannot be counted, or is not launched, does not stop the others."""
    _program(
        tmp_path, monkeypatch, "ncu",
        f"case \"$*\" in *scan_one*) exit 3;; *) printf '{PAGE}';; esac",
    )  # fmt: skip
    session.rows.clear()
    assert not gpu.passes(session, "ncu", STAGES["ncu"], 20, float("inf"))
    found = {row.what: row for row in session.rows}
    assert found["35b: few_experts, 1 rows: Duration, us"].figures == (24.91,)
    assert sum("Duration" in what for what in found) == len(DEAREST) - 1
    assert "35b: scan_one, 1 rows: FAILED" in found


def test_counters_that_only_administrators_read(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel is enough to know."""
    _program(tmp_path, monkeypatch, "ncu", "echo '==ERROR== ERR_NVGPUCTRPERM - The user does not'; exit 1")
    session.rows.clear()
    assert not gpu.passes(session, "ncu", STAGES["ncu"], 20, float("inf"))
    assert [row.what for row in session.rows] == ["FAILED", "seconds"]
    assert "only administrators" in session.rows[0].text


@pytest.mark.parametrize("name", ["profile", "ncu", "llama"])
def test_what_is_not_here_is_said(session: Session, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "SKIPPED" in _found(session, name)


def test_a_soak(session: Session) -> None:
    command = (sys.executable, Path(gpu.__file__).with_name("gpu_soak.py"), session.model("35b"), "--seconds", "5")
    assert "in use after each round" in [*session.lines(*command)][-1]


def test_rows_are_written_as_they_come(session: Session) -> None:
    written = [json.loads(line) for line in (session.out / "results.jsonl").read_text().splitlines()]
    assert written[-1] == session.rows[-1]._asdict() | {"figures": [*session.rows[-1].figures]}
