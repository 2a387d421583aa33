"""Streams that move between engines, as the tool counts them."""

from __future__ import annotations

import sys
from pathlib import Path

import moves
import pytest

from support.requests.moved import moved_between


def test_runs_are_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    results = str(tmp_path / "results")
    for first in ("0", "8"):
        few = ["--streams", "8", "--first", first, "--tokens", "30", "--every", "10"]
        monkeypatch.setattr(sys, "argv", ["moves.py", *few, "--results", results])
        assert moves.main() == 0
    printed = capsys.readouterr().out
    assert "8 streams of 240 tokens, the logits of 120 compared too; 0 differ" in printed
    assert " at least 0 of" not in printed
    assert "16 streams of 480 tokens, the logits of 270 compared too; 0 differ" in printed


def test_a_stream_that_differs_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Here one whose prompt was changed on the way."""
    monkeypatch.setattr(sys, "argv", ["moves.py", "--streams", "1", "--tokens", "12", "--every", "5"])
    monkeypatch.setattr(moves, "moved_between", lambda pair, prompt, *rest: moved_between(pair, prompt + "!", *rest))
    assert moves.main() == 1
    assert "stream 0 (greedy) differs" in capsys.readouterr().out
