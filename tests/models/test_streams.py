"""Models with residual streams: their files, and the NumPy forward pass against llama.cpp and transformers."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.models.gguf_bytes import Entry, contents, gguf_bytes
from support.models.small_streams import write_streams
from support.oracles.llama import Llama, log_softmax
from support.oracles.transformers_streams import load_streams, streams_logits
from trigraph.exporter import describe
from trigraph.exporter.describe.description import _streams_rows
from trigraph.models import TrigraphError, open_model
from trigraph.models.geometries import GEOMETRIES, geometry
from trigraph.models.model import Model, companion
from trigraph.models.reference import Reference, State
from trigraph.models.reference_streams import StreamReference, StreamState, reference_of, seen_positions
from trigraph.models.streams import Ngrams, Streams, ngram_rows
from trigraph.models.synth import write_synthetic
from trigraph.models.synth.layout import tensors

ORACLE = Path(__file__).parents[1] / "oracle" / "qwen4exp"
ORACLE_SHA256 = "0fec11ac806a225171d4603863427c198922a68f267cc13bdfe3f61e5b5da7e8"
# Differences seen are 4e-6, of logits up to 5.
TOLERANCE = 2e-5

Change = Callable[[dict[str, Any], dict[str, Entry]], None]


def streams_of(model: Model) -> tuple[Streams, Ngrams]:
    streams = model.config.streams
    assert streams is not None and streams.ngrams is not None
    return streams, streams.ngrams


def random_tokens(model: Model, count: int, seed: int = 1) -> NDArray[np.int64]:
    """Some of them end a text."""
    rng, (_, ngrams) = np.random.default_rng(seed), streams_of(model)
    tokens = rng.integers(0, model.config.vocab, count)
    tokens[rng.integers(0, count, count // 10)] = ngrams.eos
    return tokens


def shifted(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([np.zeros_like(rows[:1]), rows[:-1]])


@functools.cache
def original() -> tuple[dict[str, Any], dict[str, Entry]]:
    with TemporaryDirectory() as folder:
        return contents(write_streams(Path(folder, "original.gguf")))


def edited(folder: Path, change: Change) -> Path:
    """A small file whose metadata and tensors went through `change`."""
    pairs, tensors = map(dict, original())
    change(pairs, tensors)
    (folder / "edited.gguf").write_bytes(gguf_bytes(pairs, tensors))
    return folder / "edited.gguf"


def assert_close(found: NDArray[Any], expected: NDArray[Any], tolerance: float = TOLERANCE) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < tolerance


def test_config(tmp_path: Path) -> None:
    config = open_model(write_streams(tmp_path / "a.gguf")).config
    expected = GEOMETRIES["tiny-streams"].streams
    assert expected is not None and expected.ngrams is not None and config.streams is not None
    assert config.streams.indexer == replace(expected.indexer, heads=4)
    assert config.streams.ngrams == replace(expected.ngrams, eos=502)
    assert (config.streams.count, config.streams.low_rank, config.residual) == (4, 64, 1024)
    assert config.sigmoid_gate and config.streams.indexer.dense_positions == 2051
    assert not open_model(write_streams(tmp_path / "b.gguf", mtp=False)).config.mtp_layers


def test_layers_without_a_ratio_are_sparse_too(tmp_path: Path) -> None:
    """b11549's converter writes 0 where transformers knows the architecture."""

    def change(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        pairs["qwen4exp.attention.compress_ratios"] = np.zeros(5, np.int32)

    streams, _ = streams_of(open_model(edited(tmp_path, change)))
    assert (streams.indexer.group, streams.indexer.top) == (4, 512)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hyper_connection.count", 1, "is 1, expected at least 2"),
        ("hyper_connection.count", 65, "is 65, expected at most 64"),
        ("attention.compress_ratios", np.array([0, 0, 0, 4, 8], np.int32), r"has \[4, 8\], expected one ratio"),
        ("attention.indexer.top_k", 2047, "is 2047, expected a multiple of 4"),
        ("ple.layers", np.array([3], np.int32), "is 3, expected a Gated DeltaNet layer"),
        ("ple.layers", np.array([0, 1], np.int32), r"is \[0, 1\], expected 1 integers"),
        ("ple.head_vocab_sizes", np.array([1, 2, 3, 0], np.uint64), ".*expected 4 integers of at least 1"),
        ("ple.head_offsets", np.array([0, 1, 2, 411], np.uint64), "reach row 520, but the table has 512"),
        ("ple.layer_multipliers", np.array([1, 2, 1 << 60], np.uint64), ".*too large for the hash"),
        ("ple.eos_token_id", 512, "is 512, expected a token below 512"),
        ("embedding_length_per_layer_input", 32, "is 32, expected 256 / 4, the rows of a token"),
    ],
)
def test_refused(tmp_path: Path, key: str, value: Any, message: str) -> None:
    def change(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        pairs[f"qwen4exp.{key}"] = value

    with pytest.raises(TrigraphError, match=f"qwen4exp.{key}' {message}"):
        open_model(edited(tmp_path, change))


def test_heads_in_files_of_their_own(tmp_path: Path) -> None:
    """With embedding and output of its own, or without: the trunk's are used."""
    whole = open_model(write_streams(tmp_path / "whole.gguf"))
    trunk = write_streams(tmp_path / "trunk.gguf", mtp=False)
    tokens = random_tokens(whole, 9)
    before = shifted(StreamReference(whole).trunk(tokens)[0])
    expected = StreamReference(whole).mtp(tokens, before)[1]
    own = ("token_embd.weight", "output.weight")
    for name, kept in (("mtp-own.gguf", own), ("mtp-shared.gguf", ())):
        pairs, entries = contents(tmp_path / "whole.gguf")
        pairs = {key: value for key, value in pairs.items() if ".ple." not in key}
        entries = {key: entry for key, entry in entries.items() if key.startswith("blk.4.") or key in kept}
        (tmp_path / name).write_bytes(gguf_bytes(pairs, entries))
        head = companion(trunk)
        assert head == tmp_path / name
        np.testing.assert_array_equal(StreamReference(open_model(trunk, head)).mtp(tokens, before)[1], expected)
        with pytest.raises(TrigraphError, match=r"is missing|holds only the MTP head"):
            open_model(tmp_path / name)
        (tmp_path / name).unlink()


@pytest.mark.parametrize("name", ["blk.4.nextn.shared_head_norm.weight", "output_hc_norm.weight"])
def test_other_heads_are_refused(tmp_path: Path, name: str) -> None:
    trunk = write_streams(tmp_path / "trunk.gguf", mtp=False)
    pairs, entries = contents(write_streams(tmp_path / "whole.gguf"))
    entries = {key: entry for key, entry in entries.items() if key.startswith("blk.4.")}
    entries[name] = Entry((256,), bytes(1024))
    (tmp_path / "mtp-head.gguf").write_bytes(gguf_bytes(pairs, entries))
    with pytest.raises(TrigraphError, match=f"tensor '{name}' is of a variant of the MTP head"):
        open_model(trunk, tmp_path / "mtp-head.gguf")


def test_recorded_of_llama_cpp(tmp_path: Path) -> None:
    path = write_streams(tmp_path / "a.gguf", top=3)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == ORACLE_SHA256
    expected = {file.stem: np.load(file) for file in ORACLE.glob("*.npy")}
    reference, tokens = StreamReference(open_model(path), whole_hnorm=False), expected["tokens"]
    hidden, logits = reference.trunk(tokens)
    assert_close(logits, expected["logits"])
    assert_close(hidden[-4:], expected["h_nextn"])
    state = StreamState()
    chained, mtp_logits = reference.mtp(tokens, shifted(hidden), state)
    assert_close(mtp_logits, expected["mtp_logits"])
    draft = int(mtp_logits[-1].argmax())
    for token, row in zip(expected["draft_tokens"].tolist(), expected["draft_logits"], strict=True):
        assert draft == token
        chained, draft_logits = reference.mtp([token], chained[-1:], state)
        assert_close(draft_logits[0], row)
        draft = int(draft_logits[0].argmax())


@pytest.mark.parametrize("top", [512, 5])
def test_llama_cpp(tmp_path: Path, top: int) -> None:
    """Logits alone: that is what its server gives."""
    path = write_streams(tmp_path / "a.gguf", top=top, mtp=False, seed=2)
    model, llama = open_model(path), Llama(path, context=128)
    tokens = random_tokens(model, 100)
    expected = log_softmax(StreamReference(model).trunk(tokens)[1])
    for count in (1, 2, 23, 64, 100):
        assert_close(llama.log_probabilities(tokens[:count].tolist(), model.config.vocab), expected[count - 1])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("top", [512, 12])
def test_transformers(tmp_path: Path, top: int, seed: int) -> None:
    """Without ties at the edge of a selection, of which torch.topk does not say what it takes."""
    model = open_model(write_streams(tmp_path / "a.gguf", top=top, heads=8, seed=seed, mtp=False))
    tokens = random_tokens(model, 70)
    assert_close(StreamReference(model).trunk(tokens)[1], streams_logits(load_streams(model), tokens))


def test_step_by_step_equals_at_once(tmp_path: Path) -> None:
    model = open_model(write_streams(tmp_path / "a.gguf", top=3))
    reference, tokens = reference_of(model), random_tokens(model, 30)
    hidden, logits = reference.trunk(tokens)
    mtp_hidden, mtp_logits = reference.mtp(tokens, shifted(hidden))
    states, at = (StreamState(), StreamState()), 0
    for size in (1, 2, 5, 22):
        part = slice(at, at + size)
        found = [*reference.trunk(tokens[part], states[0])]
        found += reference.mtp(tokens[part], shifted(hidden)[part], states[1])
        states = (states[0].copy(), states[1].copy())
        for ours, whole in zip(found, (hidden, logits, mtp_hidden, mtp_logits), strict=True):
            assert_close(ours, whole[part], 1e-10)
        at += size


def test_what_the_reference_does_not_read(tmp_path: Path) -> None:
    model = open_model(write_streams(tmp_path / "a.gguf", mtp=False))
    with pytest.raises(TrigraphError, match="has no MTP head"):
        StreamReference(model).mtp([1], np.zeros((1, 1024)))
    with pytest.raises(TrigraphError, match="reads text alone"):
        StreamReference(model).trunk([1], image_rows=np.zeros((1, 256)))
    with pytest.raises(TrigraphError, match="give a StreamState"):
        StreamReference(model).trunk([1], State())
    write_synthetic("tiny-moe", tmp_path / "b.gguf", layers=1, quant="Q4_0")
    other = open_model(tmp_path / "b.gguf")
    assert type(reference_of(other)) is Reference
    with pytest.raises(TrigraphError, match="has one residual stream"):
        StreamReference(other)


def test_ngram_rows() -> None:
    ngrams = Ngrams(1, 3, 1, 4, 8, 64, 9, (3, 5, 7), (31, 29), (0, 31))

    def row(*last: int) -> list[int]:
        two = last[0] * 3 ^ last[1] * 5
        return [two % 31, (two ^ last[2] * 7) % 29 + 31]

    expected = [row(4, 9, 9), row(6, 4, 9), row(9, 6, 4), row(2, 9, 9), row(3, 2, 9)]
    assert ngram_rows(ngrams, [4, 6, 9, 2, 3], []) == expected
    assert ngram_rows(ngrams, [2, 3], [6, 9]) == expected[3:]


def test_equal_groups_are_taken_from_the_first(tmp_path: Path) -> None:
    model = open_model(write_streams(tmp_path / "a.gguf", top=2))
    streams, _ = streams_of(model)
    reference = StreamReference(model)
    zeros, turn = np.zeros((15, 32)), (np.ones((1, 1, 8)), np.zeros((1, 1, 8)))
    groups = (np.ones((3, 1, 8)), np.zeros((3, 1, 8)))
    w = reference._block_weights(3)
    seen = seen_positions(np.ones((1, 256)), zeros, w, model.config, streams, turn, groups)
    assert seen[0].tolist() == [True] * 8 + [False] * 4 + [True] * 3


def test_rows_of_the_table_are_all_that_is_read(tmp_path: Path) -> None:
    """A file of full width with a hole for its table: 35 GB that nobody reads."""
    path = tmp_path / "a.gguf"
    write_synthetic("qwen3.8-flash-next", path, layers=2, vocab=320, experts=1, quant="Q4_K_M")
    model = open_model(path)
    table = model.tensor("per_layer_token_embd.weight")
    assert (table.shape, table.type) == ((320001536, 160), "Q5_0")
    assert path.stat().st_size > 35e9 > 70 * path.stat().st_blocks * 512
    assert table.offset is not None
    with open(path, "r+b") as file:
        file.seek(table.offset + 320001535 * 110)
        file.write(bytes([0, 60, *range(20)]))
    assert model.rows("per_layer_token_embd.weight", np.array([[0], [320001535]]))[1, 0, 0] == 4 - 16
    assert model.file.array("output_hc_norm.weight").shape == (10240,)
    write_synthetic("qwen3.8-flash-next", path, layers=1, vocab=320, experts=1, quant="Q4_0")
    config = open_model(path).config  # without the layer of n-grams
    assert config.streams is not None and config.streams.ngrams is None


def test_real_sizes() -> None:
    found = tensors(geometry("qwen3.8-flash-next", mtp=False), "Q4_K_M")
    assert len(found) == 1224
    assert sum(tensor.count for tensor in found) / 1e9 == pytest.approx(176.94, abs=0.01)
    assert sum(tensor.nbytes for tensor in found) / 1e9 == pytest.approx(119.2, rel=0.01)
    types = {tensor.name: (tensor.type, tensor.kind) for tensor in found}
    assert types["per_layer_token_embd.weight"] == ("Q5_0", "hollow")
    assert {types[name][0] for name in ("blk.3.indexer.q_proj.weight", "blk.1.ple_conv1d.weight")} == {"F32"}
    assert types["blk.1.ple_norm_key.weight"] == types["output_hc_norm.weight"] == ("F32", "norm")


def test_inspected(tmp_path: Path) -> None:
    found = describe(write_streams(tmp_path / "a.gguf"))
    assert found.config.streams is not None
    assert dict(_streams_rows(found.config.streams)) == {
        "residual streams": "4",
        "n-gram table": "0 M parameters, of which a token reads 256",
        "attention sees": "512 groups of 4 positions, so all of 2051 tokens",
    }
