"""Packages of files that Ollama has written: to the bit what those of llama.cpp's converter compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest

from support.models.ollama_files import as_published
from support.models.random_gguf import Architecture, write_random
from support.models.seeing import Seen, prompt_of
from trigraph.exporter import ExportOptions, describe, export, read_manifest
from trigraph.exporter.package.manifest import SIDE_FILE
from trigraph.models.synth import write_synthetic, write_synthetic_mmproj
from trigraph.runtime import load


def computed(package: Path, *parts: Any) -> list[npt.NDArray[np.float32]]:
    """The logits after each part of a prompt, and those of three drafts after them."""
    with load(package, context=64, threads=1) as engine:
        prompt, found = prompt_of(*parts), []
        seen = Seen(engine, prompt) if prompt.images else None
        sequence = engine.steps.new_sequence() if seen is None else seen.start(engine)
        for length in (len(prompt.ids) // 2, len(prompt.ids)):
            if seen is not None:
                result = seen.prefill(engine, sequence, length)
            else:
                result = engine.steps.prefill([sequence], [[*prompt.ids[sequence.length : length]]])
            found.append(result.logits.copy())
        for token in (1, 2, 3):
            other = engine.steps.fork(sequence)
            found.append(engine.steps.draft([other], [token]).logits.copy())
            engine.steps.release(other)
    return found


def check_equal(theirs: Path, ours: Path, *parts: Any) -> None:
    for found, expected in zip(computed(theirs, *parts), computed(ours, *parts), strict=True):
        assert found.tobytes() == expected.tobytes() and expected.any()


@pytest.mark.parametrize("architecture", get_args(Architecture))
def test_published(tmp_path: Path, architecture: Architecture) -> None:
    """Experts that lie apart become a stack in the side file; nothing else but norms is copied."""
    source = write_random(tmp_path / "a.gguf", architecture, preset="blocks", dtype="Q4_K")
    export(source, tmp_path / "ours")
    manifest = export(as_published(source, tmp_path / "b.gguf", norms="trained"), tmp_path / "theirs")
    check_equal(tmp_path / "theirs", tmp_path / "ours", 20)
    made = "stored as {} in " + SIDE_FILE + ": the file holds what they are made of"
    norms = f"7 tensors of F32 {made.format('F32')}"
    experts = () if architecture == "qwen35" else (f"3 tensors of Q4_K {made.format('Q4_K')}",)
    assert manifest.notices == (norms, *experts)
    assert describe(tmp_path / "theirs").mtp


@pytest.mark.parametrize("quant", ["F16", "Q8_0"])
def test_images(tmp_path: Path, quant: str) -> None:
    """The tower of the model's own file; only the weights of the patch are copied."""
    write_synthetic("tiny-moe", tmp_path / "a.gguf", quant="Q8_0")
    write_synthetic_mmproj("mmproj-tiny-moe", tmp_path / "mmproj.gguf", quant=quant)
    source = as_published(tmp_path / "a.gguf", tmp_path / "b.gguf", tmp_path / "mmproj.gguf")
    export(tmp_path / "a.gguf", tmp_path / "ours", ExportOptions(mmproj=tmp_path / "mmproj.gguf"))
    export(source, tmp_path / "theirs")
    check_equal(tmp_path / "theirs", tmp_path / "ours", 4, (2, 3), 5, (1, 1), 2)
    assert {file.location for file in read_manifest(tmp_path / "theirs").weight_files} == {"b.gguf", SIDE_FILE}
    assert (tmp_path / "theirs" / SIDE_FILE).stat().st_size < 2 * 96 * 768 * 4 + 3 * 8 * 256 * 256 * 2
    seen = describe(source).vision
    assert seen is not None and seen.path == str(source)
