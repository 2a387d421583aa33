"""What int8 activations lose, by type of weights, ours and llama.cpp's: rows of a Markdown table.

Usage: python tools/type_losses.py --types Q8_0,Q4_K,kv

Models have random weights, all matrices of one type; where outliers are named, four channels of the norms before
products are 30, the others about 1. All engines read the same tokens. The reference is the same file with float32
activations, keys and values. The row `kv` is of float32 weights with q8_0 keys and values, and `tiny` the shipped model
with tokens that it sampled.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import gguf
import numpy as np
import pytest
import typer
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.oracles.llama_steps import LlamaSteps
from tool import run_tool
from trigraph.exporter import ExportOptions, export
from trigraph.models.errors import TrigraphError
from trigraph.models.geometries import GEOMETRIES
from trigraph.models.synth.layout import add_metadata, tensors
from trigraph.models.synth.write import write_file
from trigraph.models.tensor_types import TENSOR_TYPES
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Engine, Sampling, load
from trigraph.runtime.bench.divergence import Comparison, Divergence, log_probabilities
from trigraph.runtime.bench.perplexity import PARALLEL, predictions

KV, TINY = "kv", "tiny"
ROWS = (TINY, *TENSOR_TYPES, KV)
OUTLIERS = (3, 77, 180, 301)
"""Channels of the norms that are large; two of them share 256 elements, none share 32."""
GAIN = 30.0

Windows = list[list[int]]
Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Column:
    """A model of each type."""

    name: str
    geometry: str
    outliers: bool


COLUMNS = (
    Column("dense", "tiny-dense", False),
    Column("dense, outliers", "tiny-dense", True),
    Column("MoE, outliers", "tiny-moe", True),
)


def type_losses(
    types: Annotated[str, typer.Option(help=f"Rows, comma-separated, of {', '.join(ROWS)}.")] = ",".join(ROWS),
    windows: Annotated[int, typer.Option(min=1, help="Windows of random tokens; the second halves count.")] = 8,
    size: Annotated[int, typer.Option(min=4, help="Tokens in a window.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, tokens and samples.")] = 0,
) -> None:
    """Mean KL divergence from float32 activations, and agreement of the most likely token."""
    wanted = types.split(",")
    for name in wanted:
        if name not in ROWS:
            raise TrigraphError(f"--types {name}: the rows are {', '.join(ROWS)}")
    print("| type |" + "".join(f" {column.name}: ours | llama.cpp |" for column in COLUMNS))
    print("|---|" + "---|---|" * len(COLUMNS))
    for name in wanted:
        print("| " + " | ".join([name, *_cells(name, windows, size, seed)]) + " |", flush=True)


def _cells(name: str, windows: int, size: int, seed: int) -> Iterator[str]:
    for column in COLUMNS[:1] if name == TINY else COLUMNS:
        with tempfile.TemporaryDirectory() as folder:
            if name == TINY:
                path, tokens = TINY_GGUF, _sampled(TINY_GGUF, Path(folder), seed)
            else:
                path = Path(folder) / "model.gguf"
                vocab = _write(path, column, "F32" if name == KV else name, seed)
                tokens = np.random.default_rng(seed).integers(0, vocab, (windows, size)).tolist()
            yield from _compared(path, tokens, Path(folder), "q8_0" if name == KV else "f32")


def _write(path: Path, column: Column, kind: str, seed: int) -> int:
    """A model whose matrices have one type; the size of its vocabulary."""
    shape = replace(GEOMETRIES[column.geometry], hidden=512, vocab=1024, mtp_layers=0)
    wanted = [replace(one, type=kind) if one.type == "Q8_0" else one for one in tensors(shape, "Q8_0")]
    write_file(path, shape.architecture, lambda file: add_metadata(file, shape, kind, "Q8_0"), wanted, seed, None)
    if column.outliers:
        for tensor in gguf.GGUFReader(path, "r+").tensors:
            if tensor.name.endswith((".attn_norm.weight", ".post_attention_norm.weight")):
                tensor.data[list(OUTLIERS)] = GAIN
    return shape.vocab


def _sampled(path: Path, folder: Path, seed: int) -> Windows:
    """Ten windows that the model writes: 1,200 tokens count."""
    with _engine(path, folder, ExportOptions(activations="float32", kv_type="f32"), 512) as engine:
        firsts = engine.tokenizer.encode("The a In She It I And When We But")
        windows = []
        for number, first in enumerate(firsts[:10], 10 * seed):
            plain = Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=number)
            request = engine.generate([first], sampling=plain, max_tokens=241, ignore_eos=True)
            request.run()
            windows.append([first, *request.ids])
        return windows


def _compared(path: Path, windows: Windows, folder: Path, kv_type: str) -> Iterator[str]:
    """The cells of our engine and of llama.cpp."""
    exact = _ours(path, windows, folder, ExportOptions(activations="float32", kv_type="f32"))
    activations = "int8" if kv_type == "f32" else "float32"
    found = _ours(path, windows, folder, ExportOptions(activations=activations, kv_type=kv_type))
    yield _cell(_divergence(exact, found, windows))
    yield _cell(_divergence(exact, _llama(path, windows, exact.shape[-1], kv_type), windows))


def _ours(path: Path, windows: Windows, folder: Path, options: ExportOptions) -> Logits:
    with _engine(path, folder, options, len(windows[0])) as engine:
        rows = {
            place: logits.copy()
            for step in predictions(engine.steps, windows)
            for place, logits in zip(step.places, step.logits, strict=True)
        }
    return np.array([rows[place] for place in sorted(rows)])


def _engine(path: Path, folder: Path, options: ExportOptions, context: int) -> Engine:
    export(path, folder / "package", options)
    return load(folder / "package", context=context, threads=1, sequences=PARALLEL, speculation=False)


def _llama(path: Path, windows: Windows, vocab: int, kv_type: str) -> Logits:
    # Quantised values need fused attention.
    settings = {"type_k": 8, "type_v": 8, "flash_attn_type": 1} if kv_type == "q8_0" else {}
    try:
        steps = LlamaSteps(path, vocab, len(windows[0]), **settings)
    except pytest.skip.Exception as reason:
        raise TrigraphError(str(reason)) from None
    try:
        counted = slice(len(windows[0]) // 2, -1)
        return np.concatenate([steps.trunk(np.array(window))[counted] for window in windows])
    finally:
        steps.close()


def _divergence(exact: Logits, found: Logits, windows: Windows) -> Divergence:
    comparison = Comparison()
    tokens = [token for window in windows for token in window[len(window) // 2 + 1 :]]
    for theirs, ours, token in zip(exact, found, tokens, strict=True):
        comparison.add(log_probabilities(theirs), log_probabilities(ours), token)
    return comparison.divergence()


def _cell(found: Divergence) -> str:
    mean = f"{found.mean:.1e}".replace("e-0", "e-") if found.mean else "0"
    return f"{mean}, {100 * found.same_top:.1f} %"


if __name__ == "__main__":
    run_tool(type_losses)
