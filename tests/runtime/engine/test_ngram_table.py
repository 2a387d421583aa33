"""The table of n-grams stays in its file: rows are read when they are needed, and nothing else of it."""

from __future__ import annotations

import platform
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import onnx
import pytest

from support.models.small_streams import last_logits, write_streams
from trigraph.exporter import ExportOptions, export, read_manifest
from trigraph.models.model import open_model
from trigraph.models.streams import ngram_rows
from trigraph.models.synth import write_synthetic
from trigraph.runtime import load
from trigraph.runtime.bench.experts import ExpertCounter
from trigraph.runtime.device.mapped_weights import MappedWeights, table_bytes

TABLE = "per_layer_token_embd.weight"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def resident(path: Path) -> int:
    """Bytes of a mapped file that this process has read."""
    found, lines = 0, iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.endswith(str(path)):
            found += 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))
    return found


@pytest.mark.slow
def test_a_table_of_real_size_is_never_read_whole(tmp_path: Path, operator_library: Path) -> None:
    """35 GB in a sparse file, of which the rows of a text are written, and then found."""
    path, tokens = tmp_path / "model.gguf", [5, 300, 7, 7, 211, 40, 6, 12]
    write_synthetic("qwen3.8-flash-next", path, layers=2, vocab=320, experts=2, quant="Q8_0")
    model = open_model(path)
    table, streams = model.tensor(TABLE), model.config.streams
    assert streams is not None and streams.ngrams is not None
    assert path.stat().st_size > 35e9
    assert table.type == "Q8_0" and table.row_bytes == 170 and table.offset is not None
    rng = np.random.default_rng(0)
    with open(path, "r+b") as file:
        for row in {row for rows in ngram_rows(streams.ngrams, tokens, []) for row in rows}:
            file.seek(table.offset + row * table.row_bytes)
            file.write(b"".join(b"\x00\x28" + rng.bytes(32) for _ in range(5)))  # scales of 1/32
    before = path.stat().st_blocks
    export(path, tmp_path / "package", ExportOptions(kv_type="f32", activations="float32"))
    engine = load(tmp_path / "package", context=64, device="cpu", repack="off")
    others = sum(tensor.nbytes for tensor in model.tensors.values()) - table.nbytes
    sequence = engine.steps.new_sequence()
    logits = engine.steps.prefill([sequence], [tokens]).logits[0]
    assert resident(tmp_path / "package" / "model.gguf") < others + (20 << 20)
    assert path.stat().st_blocks <= before + 8
    counts = ExpertCounter(tmp_path / "package", read_manifest(tmp_path / "package"), 1).count([tokens])
    assert list(counts.values()) == [2, 2]
    assert resident(tmp_path / "package" / "model.gguf") < 2 * others + (40 << 20)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # its float64 weights go with it
        wanted = pool.submit(last_logits, path, tokens).result()
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=5e-5)


@pytest.mark.skipif(tuple(map(int, platform.release().split(".")[:2])) < (5, 14), reason="needs Linux 5.14")
def test_reading_ahead_leaves_it_out(tmp_path: Path) -> None:
    path = write_streams(tmp_path / "model.gguf", quant="Q4_0")
    export(path, tmp_path / "package")
    graph = onnx.load(tmp_path / "package" / "verify.onnx", load_external_data=False).graph
    (table,) = (tensor for tensor in graph.initializer if tensor.name == TABLE)
    weights = MappedWeights({"model.gguf": tmp_path / "package" / "model.gguf"})
    weights.initializers(tmp_path / "verify.onnx", graph)
    (kept,) = weights._tables.values()
    assert len(kept) == int(np.prod(table.dims)) == table_bytes(graph)
    size, parts = path.stat().st_size, weights._without_table("model.gguf")
    assert sum(map(len, parts)) == size - len(kept) // 4096 * 4096 or len(kept) - (size - sum(map(len, parts))) < 8192
    thread = weights.read_ahead()
    assert thread is not None
    thread.join()
