"""Attention's scratch memory where contexts are long and texts are not. Nothing is computed."""

from pathlib import Path

import pytest

from support.devices.fake_cuda import FakeDevice
from support.models.hollow import load_hollow, write_hollow

ROWS = 64
MOST = 256 << 20
"""Bytes of scratch memory for splits of texts, whatever lengths a context allows."""


@pytest.mark.parametrize("context", [128 << 10, 256 << 10])
def test_many_rows_in_a_long_context(tmp_path: Path, gpu: FakeDevice, context: int) -> None:
    """They are cut into splits that blocks walk side by side, and the memory for these is bounded."""
    model = write_hollow("qwen3.6-35b-a3b", tmp_path / "model.gguf", layers=4, vocab=1000)
    engine = load_hollow(model, context=context, sequences=ROWS, kv_memory=2 << 30)
    sequences = [engine.steps.new_sequence() for _ in range(ROWS)]
    engine.steps.prefill(sequences, [[1, 2]] * ROWS)
    gpu.events()
    engine.steps.verify(sequences, [[3]] * ROWS)
    taken = [int(event.split()[2]) for event in gpu.events() if event.startswith("allocate device")]
    assert MOST / 2 < max(taken) < MOST + (1 << 20)
    engine.steps.verify(sequences, [[3]] * ROWS)
    blocks = [launch.blocks for launch in gpu.launches() if "attend" in launch.kernel]
    tiles = ROWS * 16 // 8  # kv heads with 8 queries each
    assert blocks and all(count > 2 * tiles for count in blocks)


@pytest.mark.parametrize("geometry", ["qwen3.6-35b-a3b", "qwen3.6-27b"])
def test_memory_of_a_prompt_whatever_the_layers(tmp_path: Path, gpu: FakeDevice, geometry: str) -> None:
    """What a layer makes goes before the next one does; pieces of ONNX Runtime's arena may lie in another way."""

    def taken(layers: int) -> int:
        model = write_hollow(geometry, tmp_path / f"{layers}.gguf", layers=layers, vocab=1000)
        engine = load_hollow(model, context=2048, sequences=1)
        before = gpu.allocated()
        engine.steps.prefill([engine.steps.new_sequence()], [[1] * 1024])
        return gpu.allocated() - before

    assert taken(16) < 1.05 * taken(4)


def test_prompts_of_ever_more_tokens(tmp_path: Path, gpu: FakeDevice) -> None:
    """A step that is a little larger than all before takes no memory of its own."""
    model = write_hollow("qwen3.6-35b-a3b", tmp_path / "model.gguf", layers=4, vocab=1000)
    engine = load_hollow(model, context=8192, sequences=2)

    def taken_after(tokens: int) -> int:
        sequence = engine.steps.new_sequence()
        engine.steps.prefill([sequence], [[1] * tokens])
        engine.steps.release(sequence)
        return gpu.allocated()

    longest = taken_after(1024)
    grown = [taken_after(tokens) - longest for tokens in range(64, 264, 8)]
    assert 0 < grown[-1] <= 2 * MOST and len(set(grown)) <= 5
    assert taken_after(263) - longest == grown[-1]
