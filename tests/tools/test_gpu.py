"""tools/gpu.py without a GPU: time limits, failures, the table, and the provider of its pack."""

from __future__ import annotations

import json
import os
import sys
from math import inf
from pathlib import Path
from typing import Any

import gpu
import pytest

import gpu_profile
import gpu_stages
from gpu_expected import EXPECTED, VARIANTS, expected, ratio
from gpu_provider import BINARY, MAGIC, without_kernels
from gpu_runs import RUNS, Run
from gpu_session import Environment, MissingError, Row, Session, Stage
from gpu_stages import STAGES


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path / "out", tmp_path)


def _passes(session: Session, code: str, seconds: int = 60, end: float = inf) -> bool:
    def run(session: Session, name: str) -> None:
        for line in session.lines(sys.executable, "-c", code):
            session.note(name, line)

    return gpu.passes(session, "a", Stage(run, seconds), 1, end)


def _found(session: Session) -> list[tuple[str, str]]:
    """Rows but for the last one, of how long a stage took."""
    return [(row.what, row.text) for row in session.rows if row.what != "seconds"]


def test_a_stage_keeps_what_it_found_before_it_failed(session: Session) -> None:
    assert not _passes(session, "import sys; print('first', flush=True); sys.exit('the reason')")
    first, (what, reason) = _found(session)
    assert first == ("first", "") and what == "FAILED" and reason.endswith("ended with status 1: the reason")


def test_a_stage_that_dies_in_a_line(session: Session) -> None:
    """What it has printed is there, and the next stage runs."""
    assert not _passes(
        session, "import os; print('first\\n{\"what\": \"sec', end='', flush=True); os.kill(os.getpid(), 9)"
    )
    assert [what for what, _ in _found(session)] == ["first", '{"what": "sec', "FAILED"]
    assert "status -9" in session.rows[-2].text
    assert _passes(session, "print('second')")
    assert (session.out / "table.txt").read_text() == gpu.table(session.rows)


HANGING = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("first", flush=True)
subprocess.Popen(["sleep", "20"], start_new_session=True)  # it has the pipe, too
subprocess.run(["sleep", "1000"])
"""


@pytest.mark.slow
def test_a_stage_that_hangs(session: Session) -> None:
    """It ends in time, even where what it has started does not, and tells where it was."""
    assert not _passes(session, HANGING, seconds=5)
    assert [what for what, _ in _found(session)] == ["first", "FAILED"] and "was not done" in session.rows[1].text
    assert "subprocess.py" in (session.out / "log.txt").read_text()
    assert _passes(session, "print('second')")
    written = [json.loads(line)["what"] for line in (session.out / "results.jsonl").read_text().splitlines()]
    assert written == ["first", "FAILED", "seconds", "second", "seconds"]


def test_when_the_time_of_all_is_over(session: Session) -> None:
    assert _passes(session, "print(1)", end=0)
    assert [row.what for row in session.rows] == ["SKIPPED"]


def test_what_is_missing_is_no_failure(session: Session) -> None:
    def run(session: Session, name: str) -> None:
        raise MissingError("no such thing")

    assert gpu.passes(session, "a", Stage(run, 1), 1, inf)
    assert _found(session) == [("SKIPPED", "no such thing")]


def test_a_program_that_is_not_there(session: Session) -> None:
    with pytest.raises(RuntimeError, match="No such file"):
        [*session.lines("/nowhere/program")]


def test_a_model_that_cannot_be_written(session: Session) -> None:
    session.write([("35b", -1)])
    with pytest.raises(RuntimeError, match=r"35b-a3b--1.gguf was not written: .*layers"):
        session.model("35b", -1)


def _program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


ROWS = """cat <<'END'
{"copy_gb_s": 2900.0, "models": [
{"model": "qwen3.6-35b-a3b", "kernels": [
 {"kernel": "norm", "rows": 1, "sequences": 1, "bits": true, "hash": "0", "us": 3.00, "gb_s": 1.0, "of_copies": 0.1},
 {"kernel": "norm", "rows": 4, "sequences": 4, "bits": false, "hash": "0", "us": 4.00, "gb_s": 1.0, "of_copies": 0.1},
 {"kernel": "norm", "rows": 4, "sequences": 1, "bits": true, "hash": "0", "us": 5.00, "gb_s": 1.0, "of_copies": 0.1},
 {"kernel": "head", "rows": 1, "sequences": 1, "bits": true, "hash": "0", "us": 6.00, "gb_s": 1.0, "of_copies": 0.1},
 {"kernel": "head", "rows": 4, "seq
END
echo 'an illegal memory access' >&2; exit 1"""


def test_kernels_that_end_in_the_midst(session: Session, tmp_path: Path) -> None:
    """What came before is in the table."""
    session.program = _program(tmp_path / "gpu_kernels", ROWS)
    assert not gpu.passes(session, "kernels", STAGES["kernels"], 1, inf)
    rows = {row.what: (row.figures, row.text) for row in session.rows}
    assert rows["copies on the device, GB/s"] == ((2900.0,), "")
    assert rows["35b: norm"] == ((3.0, 4.0), "bits differ, rows [4]")
    assert rows["35b: norm, one sequence"] == ((5.0,), "")
    assert rows["35b: head"] == ((6.0,), "")
    assert rows["FAILED"][1].endswith("an illegal memory access")


def test_a_variant_that_makes_bits_right(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves the stages behind; a check that no variant helps leaves them as they are."""
    wanted = {"TRIGRAPH_HOST_CALLS": "1"}

    def compare(session: Session, stage: str, run: Run, work: str, name: str, environment: Environment) -> None:
        if run.memory and not wanted.items() <= {**session.switches, **environment}.items():
            raise RuntimeError("it hangs")

    monkeypatch.setattr(gpu_stages, "time_run", compare)
    monkeypatch.setattr(gpu_stages, "_recorded", lambda session, environment: None)
    monkeypatch.setattr(gpu_stages, "_rows_alone", lambda session, stage, environment: None)
    assert not gpu.passes(session, "bits", STAGES["bits"], 1, inf)
    assert session.switches == wanted
    agreed = [what for what, text in _found(session) if text == "agrees"]
    assert agreed[3] == "eight layers, 35b with experts on both, host functions begin experts"
    assert all(what.endswith(", as it is") for what in agreed[:3] + agreed[4:])
    assert (
        _found(session)[-1][1]
        == "wrong as it is: eight layers, 35b with experts on both (right: host functions begin experts)"
    )
    code = "import os; print(os.environ['TRIGRAPH_HOST_CALLS'])"
    assert [*session.lines(sys.executable, "-c", code)] == ["1"]


SMI = "echo 'NVIDIA A10, 23028, 8.6, 580.1, 4, 16'"


def test_a_gpu_with_less_memory(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that do not fit are left out, with the reason."""
    _program(tmp_path / "nvidia-smi", SMI)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert gpu.unfit(session, None) is None and gpu.unfit(session, 80) is None
    assert "this pack is for architecture 90, and NVIDIA A10 has 86" in (gpu.unfit(session, 90) or "")
    session.rows.clear()
    for name, run in RUNS.items():
        if (run.memory or run.needed) > 22 and name in STAGES:
            assert gpu.passes(session, name, STAGES[name], 1, inf)
    assert {text for _, text in _found(session)} >= {"it takes 36 GiB of a GPU, which has 22"}
    assert {what for what, _ in _found(session)} == {"SKIPPED"}


def test_the_table() -> None:
    before, now, _ = expected("35b", "decode")
    rows = [Row("35b", "decode", (2 * float(now),)), Row("35b", "hash", (), "abc")]
    _, decode, unknown = gpu.table(rows).splitlines()
    assert decode.split()[:6] == ["35b", "decode", before, now, f"{2 * float(now):g}", "2.00"]
    assert unknown.split() == ["35b", "hash", "abc"]


@pytest.mark.parametrize(
    ("figures", "now", "shown"),
    [
        ((3.0,), "2.0 to 4.0", "1.00"),
        ((8.0,), "2.0 to 4.0", "2.00"),
        ((1.0,), "2.0 to 4.0", "0.50"),
        ((9.0, 3.0), "- / 2", "1.50"),
        ((2.0, 6.0), "2 / 3", "2.00"),
        ((3.0,), "slower", ""),
        ((3.0,), "", ""),
    ],
)
def test_ratios(figures: tuple[float, ...], now: str, shown: str) -> None:
    assert ratio(figures, now) == shown


def test_predictions_are_of_what_is_timed() -> None:
    assert {stage for stage, _ in EXPECTED} <= {*STAGES}
    assert {variant.stage for variant in VARIANTS} <= {*RUNS, "kernels"}
    assert len({variant.folder for variant in VARIANTS}) == len(VARIANTS)
    for variant in VARIANTS:
        assert expected("variants", f"{variant.name}, {variant.stage}: decode").now == variant.expected


def test_a_profile() -> None:
    """Launches, microseconds and gaps of a step; what lies between steps is no gap."""
    found: dict[str, tuple[float, ...]] = {}
    name = "void trigraph::cuda::(anonymous namespace)::scan<4>(float*, int)"
    events: list[dict[str, Any]] = []
    for at in range(gpu_profile.STEPS):
        events += [{"name": name, "ts": 1000 * at, "dur": 10}, {"name": "Memcpy", "ts": 1000 * at + 12, "dur": 4}]
    gpu_profile.report("decode", events, lambda what, *figures, text="": found.update({what: figures}))
    assert found == {
        "decode: launches, kernels, gaps": (2, 14, 2),
        "decode: scan<4>": (1, 10),
        "decode: Memcpy": (1, 4),
    }


def test_a_small_provider() -> None:
    """Fat binaries are zeroed, and nothing else."""

    def binary(code: bytes) -> bytes:
        return BINARY.pack(MAGIC, 1, BINARY.size, len(code)) + code

    first, second = binary(b"..ScatterND.."), binary(b"Softmax")
    data = bytearray(b"begin" + first + MAGIC + b"by chance" + second + b"end")
    assert without_kernels(data) == 2
    assert data == b"begin" + bytes(len(first)) + MAGIC + b"by chance" + bytes(len(second)) + b"end"
