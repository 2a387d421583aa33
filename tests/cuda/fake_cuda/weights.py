"""Weights and state on the device: whose they are, and when they go."""

import gc
from pathlib import Path

import numpy as np
import pytest

from support.devices.fake_cuda import FakeDevice
from support.models.packages import Packages
from trigraph.models.synth import write_synthetic
from trigraph.runtime import Options, load
from trigraph.runtime.device.cuda import weights
from trigraph.runtime.state import memory_ahead

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def first_row(path: Path, device: str) -> bytes:
    """Logits after a prompt, from a model that is gone afterwards."""
    engine = load(path, device=device, context=64)
    sequence = engine.steps.new_sequence()
    row: np.ndarray = engine.steps.prefill([sequence], [PROMPT]).logits.copy()
    return row.tobytes()


def test_a_file_is_read_while_it_is_copied(
    tmp_path: Path, gpu: FakeDevice, operator_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pieces take turns: one is filled again when its own copy is done, while the other one's may still run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(weights, "_PIECE", 10_000)
    path = tmp_path / "model.gguf"
    write_synthetic("tiny-moe", path, quant="Q4_K_M", seed=3)
    expected = first_row(path, "cpu")
    gpu.events()
    told: list[tuple[str, int, int]] = []
    engine = load(path, device="cuda", context=64, progress=lambda *step: told.append(step))
    steps = [event for event in gpu.events() if event.startswith(("copy pinned device 10000", "wait event"))]
    assert "copy pinned device 10000\nwait event\ncopy pinned device 10000\nwait event\ncopy" in "\n".join(steps)
    assert steps[:2] == ["copy pinned device 10000"] * 2
    del engine
    done, totals = zip(*(step[1:] for step in told if step[0] == "upload"), strict=True)
    assert list(done) == sorted(done) and len(set(totals)) == 1
    assert 0.9 * totals[0] < done[-1] <= totals[0]
    assert first_row(path, "cuda") == expected


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


def test_a_thread_of_the_hosts_memory_holds_none_of_the_gpus(
    packages: Packages, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an engine has on the GPU goes with it, whatever its threads still do."""
    monkeypatch.setattr(memory_ahead, "_PAUSE", 600)
    before = gpu.allocated()
    engine = load(packages("tiny-dense", "Q4_K_M"), device="cuda", context=64)
    engine.generate(PROMPT[:1], Options(max_tokens=1)).run()
    engine.close()
    del engine
    assert gpu.allocated() == before
