"""Exported graphs of models with residual streams: their nodes, and what they compute, against the NumPy reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from support.models.gguf_bytes import contents, gguf_bytes
from support.models.small_streams import write_streams
from support.operators.row_bits import portable_kernels
from trigraph.exporter import ExportOptions, export, read_manifest
from trigraph.models import Model, open_model
from trigraph.models.errors import TrigraphError
from trigraph.models.reference_streams import StreamReference, StreamState
from trigraph.models.synth import write_synthetic_mmproj
from trigraph.runtime import load
from trigraph.runtime.execution.steps import Steps

TOLERANCE = 2e-5
LENGTH = 300

pytestmark = pytest.mark.usefixtures("operator_library")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_streams(tmp_path_factory.mktemp("source") / "model.gguf")


@pytest.fixture(scope="module")
def package(source: Path) -> Path:
    export(source, source.parent / "package", ExportOptions(kv_type="f32", activations="float32"))
    return source.parent / "package"


@pytest.fixture(scope="module")
def text(source: Path) -> tuple[list[int], NDArray[np.float64], NDArray[np.float64]]:
    """A text with ends of texts in it, and the hidden rows and logits of its tokens."""
    model = open_model(source)
    tokens = np.random.default_rng(5).integers(0, model.config.vocab, LENGTH)
    tokens[[0, 9, 10, 25, 27, 100]] = ends_text(model)
    return tokens.tolist(), *StreamReference(model).trunk(tokens)


@pytest.fixture
def steps(package: Path) -> Iterator[Steps]:
    yield load(package, threads=2, context=LENGTH, sequences=3, device="cpu").steps


def ends_text(model: Model) -> int:
    assert model.config.streams is not None and model.config.streams.ngrams is not None
    return model.config.streams.ngrams.eos


def close(found: NDArray[Any], expected: NDArray[Any]) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_nodes(package: Path) -> None:
    """A mixer is four nodes; the graphs have no more than that, the n-grams, and the blocks' own."""
    graph = onnx.load(package / "verify.onnx", load_external_data=False).graph
    counts = Counter(node.op_type for node in graph.node)
    mixers = 2 * 4 + 1
    assert (counts["StreamNorm"], counts["StreamMean"]) == (mixers + 2, mixers)
    assert (counts["NgramRows"], counts["NgramMix"], counts["Concat"], counts["Reshape"]) == (1, 1, 1, 1)
    assert counts["BlockMatMul"] == mixers + 4 * 2 + 4 + 3  # of a layer: projections, back, and those of its experts
    assert counts["GatedBlockMatMul"] == mixers + 4
    assert (counts["PagedIndexWrite"], counts["PagedSelect"], counts["PagedAttention"]) == (1, 1, 1)
    manifest = read_manifest(package)
    assert (manifest.features, manifest.max_context) == (("streams",), 4096)
    model = onnx.load(package / "prefill.onnx", load_external_data=False)
    assert model.model_version == 9
    assert [(entry.key, entry.value) for entry in model.metadata_props] == [("trigraph.features", "streams")]
    windows = [tensor.dims for tensor in manifest.state if tensor.name == "ngrams.1.window"]
    assert windows == [("slots", 9 + 8, 1024)]


@pytest.mark.parametrize("length", [1, 50, LENGTH])
def test_prefills(steps: Steps, text: Any, length: int) -> None:
    tokens, hidden, logits = text
    row = steps.prefill([steps.new_sequence()], [tokens[:length]])
    close(row.logits[0], logits[length - 1])
    close(row.hidden[0], hidden[length - 1])


def test_token_by_token_and_verifies_with_rejects(steps: Steps, text: Any) -> None:
    """Two sequences side by side; drafts are wrong behind some right ones, and nothing is rolled back."""
    tokens, hidden, logits = text
    rng, sequences, at = np.random.default_rng(2), [steps.new_sequence() for _ in range(2)], 0
    while at < 120:
        good = int(rng.integers(1, 9))
        wrong = rng.integers(0, steps.vocab, 8 - good).tolist()
        rows = steps.verify(sequences, [[*tokens[at : at + good], *wrong], tokens[at : at + good]])
        for first in (0, 8):
            close(rows.logits[first : first + good], logits[at : at + good])
            close(rows.hidden[first : first + good], hidden[at : at + good])
        for sequence in sequences:
            steps.keep(sequence, good)
        at += good
    row = steps.prefill(sequences[:1], [tokens[at : at + 30]])
    close(row.logits[0], logits[at + 29])


def test_quantised(tmp_path: Path) -> None:
    """Every block type in turn, in float32 activations: both sides read the same weights."""
    source = write_streams(tmp_path / "model.gguf", quant="mixed")
    export(source, tmp_path / "package", ExportOptions(kv_type="f32", activations="float32"))
    tokens = list(range(40, 100))
    steps = load(tmp_path / "package", context=100, device="cpu").steps
    _, logits = StreamReference(open_model(source)).trunk(tokens)
    np.testing.assert_allclose(steps.prefill([steps.new_sequence()], [tokens]).logits[0], logits[-1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("top", [3, 20])
def test_attention_over_groups(tmp_path: Path, top: int) -> None:
    """Rows that do not see all: prefills, verifies with rejects, and drafts, whose head chooses for itself."""
    source = write_streams(tmp_path / "model.gguf", top=top, heads=8)
    export(source, tmp_path / "package", ExportOptions(kv_type="f32", activations="float32"))
    steps = load(tmp_path / "package", threads=2, chunk=64, context=LENGTH, sequences=3, device="cpu").steps
    reference, rng = StreamReference(open_model(source)), np.random.default_rng(5)
    tokens = rng.integers(0, steps.vocab, LENGTH).tolist()
    hidden, logits = reference.trunk(tokens)
    for length in (1, 4 * top + 3, 4 * top + 4, LENGTH):
        sequence = steps.new_sequence()
        close(steps.prefill([sequence], [tokens[:length]]).logits[0], logits[length - 1])
        steps.release(sequence)
    sequence, at = steps.new_sequence(), 0
    while at < 200:
        good = int(rng.integers(1, 9))
        wrong = rng.integers(0, steps.vocab, 8 - good).tolist()
        rows = steps.verify([sequence], [[*tokens[at : at + good], *wrong]])
        close(rows.logits[:good], logits[at : at + good])
        steps.keep(sequence, good)
        at += good
    before = np.concatenate([np.zeros_like(hidden[:1]), hidden[:at]])
    _, drafted = reference.draft(tokens[: at + 1], before, 2, StreamState())
    found = steps.draft([sequence], [tokens[at]])
    close(found.logits[0], drafted[0])
    close(steps.draft_more([sequence], found.tokens.tolist(), found.hidden).logits[0], drafted[1])


@pytest.mark.slow
@pytest.mark.parametrize("kv_type", ["f16", "f32", "q8_0"])
def test_the_promise_beyond_all_groups(tmp_path: Path, kv_type: str) -> None:
    """Cuts, rejected tokens, companions, threads and the portable set: the same bits."""
    source = write_streams(tmp_path / "model.gguf", top=5, quant="Q4_K_M")
    export(source, tmp_path / "package", ExportOptions(kv_type=kv_type))

    def rows(threads: int, chunk: int) -> list[list[bytes]]:
        steps = load(tmp_path / "package", threads=threads, chunk=chunk, context=200, sequences=4, device="cpu").steps
        rng, found = np.random.default_rng(1), list[list[bytes]]()
        texts = rng.integers(0, steps.vocab, (2, 150)).tolist()
        alone = steps.new_sequence()
        plain: list[bytes] = []
        for token in texts[0]:
            plain.append(steps.verify([alone], [[token]]).logits[0].tobytes())
            steps.keep(alone, 1)
        found.append(plain)
        for length in (19, 23, 24, 25, 64, 65, 150):
            sequence = steps.new_sequence()
            assert steps.prefill([sequence], [texts[0][:length]]).logits[0].tobytes() == plain[length - 1]
            steps.release(sequence)
        both, at = [steps.new_sequence() for _ in range(2)], 0
        while at < 140:
            good, bad = int(rng.integers(1, 9)), rng.integers(0, steps.vocab, 8).tolist()
            pieces = [[*text[at : at + good], *bad[good:]] for text in texts]
            result = steps.verify(both, pieces)
            assert [row.tobytes() for row in result.logits[:good]] == plain[at : at + good]
            for sequence in both:
                steps.keep(sequence, good)
            at += good
            draft = steps.draft(both, [text[at] for text in texts])
            found.append([draft.logits.tobytes()])
        return found

    expected = rows(1, 512)
    assert rows(2, 13) == expected
    with portable_kernels():
        assert rows(1, 64) == expected


def test_graphs_of_files_with_and_without_a_head(source: Path, package: Path, tmp_path: Path) -> None:
    assert sorted(read_manifest(package).graphs) == ["draft", "prefill", "verify"]
    folder = tmp_path / "beside"
    folder.mkdir()
    trunk = write_streams(folder / "model.gguf", mtp=False)
    manifest = export(trunk, folder / "package")
    assert sorted(manifest.graphs) == ["prefill", "verify"] and not manifest.notices
    pairs, entries = contents(source)
    pairs = {key: value for key, value in pairs.items() if ".ple." not in key}
    head = {key: entry for key, entry in entries.items() if key.startswith("blk.4.")}
    (folder / "mtp-model.gguf").write_bytes(gguf_bytes(pairs, head))
    options = ExportOptions(kv_type="f32", activations="float32")
    assert "draft" in export(trunk, folder / "package", options).graphs
    rows = [_first_draft(load(path, context=64, device="cpu").steps) for path in (folder / "package", package)]
    assert rows[0] == rows[1]


def _first_draft(steps: Steps) -> bytes:
    sequence = steps.new_sequence()
    steps.prefill([sequence], [[1, 2, 3]])
    return steps.draft([sequence], [4]).logits.tobytes()


def test_drafts(source: Path, text: Any, tmp_path: Path) -> None:
    """Chains behind a prefill, and behind verifies whose rows the head has not seen."""
    export(source, tmp_path / "package", ExportOptions(kv_type="f32", activations="float32"))
    steps = load(tmp_path / "package", context=100, device="cpu").steps
    (tokens, hidden, _), reference = text, StreamReference(open_model(source))
    sequence = steps.new_sequence()
    steps.prefill([sequence], [tokens[:50]])
    for end in (50, 52, 60):
        if end > sequence.length:
            steps.verify([sequence], [tokens[sequence.length : end]])
            steps.keep(sequence, end - sequence.length)
        before = np.concatenate([np.zeros_like(hidden[:1]), hidden[:end]])
        drafts, logits = reference.draft(tokens[: end + 1], before, 4, StreamState())
        found = steps.draft([sequence], [tokens[end]])
        for index in range(4):
            assert found.tokens.tolist() == drafts[index : index + 1].tolist()
            close(found.logits[0], logits[index])
            found = steps.draft_more([sequence], found.tokens.tolist(), found.hidden)


def test_no_function_bodies(source: Path, tmp_path: Path) -> None:
    with pytest.raises(TrigraphError, match="the model has residual streams: portable packages, which run without"):
        export(source, tmp_path / "package", ExportOptions(portable=True))


def test_no_tower(source: Path, tmp_path: Path) -> None:
    write_synthetic_mmproj("mmproj-tiny-dense", tmp_path / "mmproj.gguf")
    with pytest.raises(TrigraphError, match=r"mmproj.gguf: models of architecture 'qwen4exp' read text alone"):
        export(source, tmp_path / "package", ExportOptions(mmproj=tmp_path / "mmproj.gguf"))
