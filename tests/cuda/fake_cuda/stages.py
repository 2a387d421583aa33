"""Stages of tools/gpu.py from one end to the other, with models of a few layers. Nothing is computed."""

import time
from pathlib import Path

import gpu
import pytest

from gpu_session import Session
from support.models.hollow import write_hollow

FEW = 4
SECONDS = 5
"""Of a soak."""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("gpu")
    for geometry in ("qwen3.6-35b-a3b", "qwen3.6-27b"):
        write_hollow(geometry, folder / f"{geometry}-{FEW}.gguf", layers=FEW)
    return Session(FEW, folder, Path("gpu_kernels"))


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("state", 2),
        ("parts", 4),
        ("parts-27b", 2),
        ("time-35b", 28),
        ("time-27b", 28),
        ("prompts", 3),
        ("requests", 4),
        ("served", 8),
        ("soak-1", 1),
    ],
)
def test_a_stage(session: Session, monkeypatch: pytest.MonkeyPatch, name: str, rows: int) -> None:
    """It notes all that it is to find, within its time."""
    monkeypatch.setattr(gpu, "SOAKED", SECONDS)
    session.rows.clear()
    stage, limit = gpu.STAGES[name]
    session.deadline = time.monotonic() + limit
    stage(session)
    assert [row[0] for row in session.rows] == [name] * rows
    assert time.monotonic() < session.deadline and limit < 600
