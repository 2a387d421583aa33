"""`tools/type_losses.py`: what it refuses, and a row of its table."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import type_losses

from tool import run_tool


def test_an_unknown_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["type_losses.py", "--types", "Q8_0,Q9_9"])
    with pytest.raises(SystemExit, match="--types Q9_9: the rows are tiny, Q4_K, "):
        run_tool(type_losses.type_losses)


@pytest.mark.slow
def test_rows(operator_library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Int8 activations lose something in all models, halves nothing; keys and values little."""
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: no comparison with llama.cpp")
    type_losses.type_losses("Q8_0,F16,kv", windows=1, size=16)
    lines = [re.findall(r"(\S+), ", line) for line in capsys.readouterr().out.splitlines()[2:]]
    eight_bits, halves, kept = [[float(mean) for mean in line] for line in lines]
    assert all(len(row) == 6 for row in (eight_bits, halves, kept))
    assert halves[::2] == [0, 0, 0]
    assert all(1e-4 < value < 2 for value in eight_bits)
    assert all(0 < value < 1e-4 for value in kept)
