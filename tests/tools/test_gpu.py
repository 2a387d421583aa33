"""tools/gpu.py without a GPU: time limits, failures, the table, and the provider of its pack."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gpu
import pytest

import gpu_profile
from gpu_expected import EXPECTED, VARIANTS, expected, ratio
from gpu_provider import BINARY, MAGIC, without_kernels
from gpu_session import MissingError, Row, Session, Stage
from gpu_stages import RUNS, STAGES


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path / "out", tmp_path)


def _passes(session: Session, code: str, seconds: int = 60, end: float = float("inf")) -> bool:
    def run(session: Session) -> None:
        for line in session.lines(sys.executable, "-c", code):
            session.note("a", line.strip())

    return gpu.passes(session, "a", Stage(run, seconds), 1, end)


def test_a_stage_keeps_what_it_found_before_it_failed(session: Session) -> None:
    assert not _passes(session, "import sys; print('first', flush=True); sys.exit('the reason')")
    assert [(row.what, row.text.rpartition(": ")[2]) for row in session.rows] == [
        ("first", ""),
        ("FAILED", "the reason"),
    ]


@pytest.mark.slow
def test_a_stage_has_a_time_limit(session: Session) -> None:
    """Also for what its programs have started."""
    code = "import subprocess; print('first', flush=True); subprocess.run(['sleep', '1000'])"
    assert not _passes(session, code, seconds=5)
    assert session.rows[-1].what == "FAILED" and "was not done" in session.rows[-1].text
    written = [json.loads(line)["what"] for line in (session.out / "results.jsonl").read_text().splitlines()]
    assert written == ["first", "FAILED"]


def test_when_the_time_of_all_is_over(session: Session) -> None:
    assert _passes(session, "print(1)", end=0)
    assert [row.what for row in session.rows] == ["SKIPPED"]


def test_what_is_missing_is_no_failure(session: Session) -> None:
    def run(session: Session) -> None:
        raise MissingError("no such thing")

    assert gpu.passes(session, "a", Stage(run, 1), 1, float("inf"))
    assert session.rows == [Row("a", "SKIPPED", (), "no such thing")]


def test_the_table() -> None:
    _, decode, unknown = gpu.table([Row("35b", "decode", (5.4,)), Row("35b", "hash", (), "abc")]).splitlines()
    assert decode.split()[:6] == ["35b", "decode", "3.08", "2.55", "5.4", "2.12"]
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
