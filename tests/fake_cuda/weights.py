"""Weights on the device: whose they are, and when they go."""

import gc
from pathlib import Path

import numpy as np
import pytest

from support.fake_cuda import FakeDevice
from trigraph.models.synth import write_synthetic
from trigraph.runtime import load

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def first_row(path: Path, device: str) -> bytes:
    """Logits after a prompt, from a model that is gone afterwards."""
    engine = load(path, device=device, context=64)
    sequence = engine.steps.new_sequence()
    row: np.ndarray = engine.steps.prefill([sequence], [PROMPT]).logits.copy()
    return row.tobytes()


def test_each_model_has_its_own_weights(
    tmp_path: Path, gpu: FakeDevice, operator_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files of one layout in turns: their weights are mapped at the same addresses, one after the other."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for seed, path in enumerate(files):
        write_synthetic("tiny-moe", path, quant="Q4_K_M", seed=seed)
    expected = [first_row(path, "cpu") for path in files]
    assert expected[0] != expected[1]
    left = []
    for turn in range(6):
        assert first_row(files[turn % 2], "cuda") == expected[turn % 2], f"turn {turn}"
        gc.collect()
        left.append(gpu.allocated())
    assert left[-1] == left[0], "memory of models that are gone"
