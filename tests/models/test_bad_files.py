"""Malformed and unfit GGUF files: one clear line each, at once, without a large allocation."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.models.gguf_bytes import Entry, Raw, gguf_bytes, string
from support.models.random_gguf import Architecture, changed, write_random
from trigraph.models import GGUFFile, TrigraphError, open_model

MAX_SECONDS = 1.0
MAX_BYTES = 32 << 20
HUGE = 2**63
GOOD = {"general.architecture": "qwen35"}
VECTOR = Entry((8,), b"\0" * 32)


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """The block raises a one-line TrigraphError that has each of `words`, quickly and without large allocations."""
    tracemalloc.start()
    start = time.thread_time()
    try:
        with pytest.raises(TrigraphError) as caught:
            yield
        seconds, (_, peak) = time.thread_time() - start, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert "\n" not in text and len(text) < 500
    for word in words:
        assert word in text, text
    assert seconds < MAX_SECONDS and peak < MAX_BYTES, (seconds, peak)


def array_of(kind: int, count: int, data: bytes = b"") -> Raw:
    return Raw(struct.pack("<IIQ", 9, kind, count) + data)


def test_paths_that_are_not_files(tmp_path: Path) -> None:
    with refused("missing.gguf", "No such file"):
        open_model(tmp_path / "missing.gguf")
    with refused(str(tmp_path), "is not a file"):
        open_model(tmp_path)


MALFORMED: dict[str, tuple[bytes, list[str]]] = {
    "empty": (b"", ["is not a GGUF file", "0 bytes"]),
    "another format": (b"PK\x03\x04" + bytes(100), ["is a ZIP archive"]),
    "version 1": (gguf_bytes(GOOD, version=1), ["GGUF version 1", "2 and 3"]),
    "version 4": (gguf_bytes(GOOD, version=4), ["GGUF version 4"]),
    "big-endian": (gguf_bytes(GOOD, version=3 << 24), ["big-endian"]),
    "huge pair count": (gguf_bytes(GOOD, counts=(None, HUGE)), [f"{HUGE} keys"]),
    "huge tensor count": (gguf_bytes(GOOD, counts=(2**64 - 1, None)), ["truncated or damaged"]),
    "more pairs than there are": (gguf_bytes({**GOOD, "a": "b" * 99}, counts=(None, 5)), ["truncated or damaged"]),
    "huge string": (gguf_bytes({"a": Raw(struct.pack("<IQ", 8, HUGE))}), ["'a'", str(HUGE)]),
    "huge key": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, HUGE) + bytes(64), ["name of a key", str(HUGE)]),
    "huge number array": (gguf_bytes({"a": array_of(4, HUGE)}), ["'a'", "truncated or damaged"]),
    "array product that wraps": (gguf_bytes({"a": array_of(10, 2**61 + 1, bytes(64))}), ["'a'", str(8 * (2**61 + 1))]),
    "huge string array": (gguf_bytes({"a": array_of(8, HUGE)}), ["'a'"]),
    "string array with a huge item": (
        gguf_bytes({"a": array_of(8, 3, string("x") + struct.pack("<Q", 2**64 - 1) + bytes(64))}),
        ["item 1", "'a'", str(2**64 - 1)],
    ),
    "array of arrays": (gguf_bytes({"a": array_of(9, 1, bytes(64))}), ["'a'", "an array of arrays"]),
    "unknown value type": (gguf_bytes({"a": Raw(struct.pack("<I", 77) + bytes(32))}), ["'a'", "value type 77"]),
    "key that is not text": (gguf_bytes([(b"\xff\xfe", 1)]), ["name of a key", "UTF-8"]),
    "value that is not text": (gguf_bytes({"a": Raw(struct.pack("<I", 8) + string(b"\xff"))}), ["'a'", "UTF-8"]),
    "long value that is not text": (
        gguf_bytes({"a": Raw(struct.pack("<I", 8) + string(b"\xff" * (10 << 20)))}),
        ["'a'", "UTF-8"],
    ),
    "token that is not text": (gguf_bytes({"a": array_of(8, 1, string(b"\xff"))}), ["item 0", "'a'", "UTF-8"]),
    "key of 2000 letters": (gguf_bytes({"a" * 2000: 1}), ["name of a key", "2000 bytes"]),
    "key twice": (gguf_bytes([("a", 1), ("a", 2)]), ["'a' appears twice"]),
    "alignment 0": (gguf_bytes({"general.alignment": 0}), ["general.alignment", "is 0", "power of two"]),
    "alignment 24": (gguf_bytes({"general.alignment": 24}), ["general.alignment", "is 24", "power of two"]),
    "alignment text": (gguf_bytes({"general.alignment": "32"}), ["general.alignment", "'32'"]),
    "tensor twice": (gguf_bytes(GOOD, [("t", VECTOR), ("t", VECTOR)]), ["'t' appears twice"]),
    "tensor name that is huge": (
        b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 2**40) + bytes(64),
        ["name of a tensor", str(2**40)],
    ),
    "no dimensions": (gguf_bytes(GOOD, {"t": Entry((), bytes(32))}), ["'t'", "0 dimensions"]),
    "five dimensions": (gguf_bytes(GOOD, {"t": Entry((1,) * 5, bytes(32))}), ["'t'", "5 dimensions"]),
    "huge number of dimensions": (
        gguf_bytes(GOOD, {"t": Entry((1,) * 4, bytes(32))}).replace(
            string("t") + b"\4\0\0\0", string("t") + b"\xff" * 4
        ),
        ["'t'", f"{2**32 - 1} dimensions"],
    ),
    "dimension 0": (gguf_bytes(GOOD, {"t": Entry((8, 0), bytes(32))}), ["'t'", "(0, 8)"]),
    "dimensions that wrap to 0": (gguf_bytes(GOOD, {"t": Entry((2**32, 2**32), bytes(32))}), ["'t'", "truncated"]),
    "dimensions that wrap to 8": (gguf_bytes(GOOD, {"t": Entry((2**61 + 2, 4), bytes(32))}), ["'t'", "truncated"]),
    "huge dimension": (gguf_bytes(GOOD, {"t": Entry((2**64 - 1,), bytes(32))}), ["'t'", "truncated"]),
    "unknown tensor type": (gguf_bytes(GOOD, {"t": Entry((8,), bytes(32), type=999)}), ["'t'", "unknown type 999"]),
    "half a block": (gguf_bytes(GOOD, {"t": Entry((48,), bytes(64), type=8)}), ["'t'", "Q8_0", "multiples of 32"]),
    "offset past the end": (gguf_bytes(GOOD, {"t": Entry((8,), bytes(32), offset=32)}), ["'t'", "ends at byte"]),
    "offset that wraps": (gguf_bytes(GOOD, {"t": Entry((8,), bytes(32), offset=2**64 - 32)}), ["'t'", "ends at byte"]),
    "offset without alignment": (gguf_bytes(GOOD, {"t": Entry((8,), bytes(64), offset=4)}), ["'t'", "offset 4"]),
    "data that is cut off": (gguf_bytes(GOOD, {"t": VECTOR})[:-1], ["'t'", "truncated"]),
    "split count text": (gguf_bytes({"split.count": "3"}), ["split.count", "'3'"]),
    "split count array": (gguf_bytes({"split.count": np.arange(900, dtype="u2")}), ["split.count", "array([", "..."]),
    "split with another name": (gguf_bytes({"split.count": 3}), ["one of 3 parts", "original names"]),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed(tmp_path: Path, case: str) -> None:
    data, words = MALFORMED[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with refused("bad.gguf", *words):
        open_model(path)


def test_a_header_without_end_in_a_large_file(tmp_path: Path) -> None:
    """Zeros are valid empty strings: the bound on the header has to stop this, not the size of the file."""
    path = tmp_path / "bad.gguf"
    with open(path, "wb") as file:
        file.write(gguf_bytes({"a": array_of(8, 2**32)}))
        file.truncate(2**40)  # sparse
    with refused("'a'", "a header may only go on"):
        open_model(path)


def test_overlapping_tensors_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_bytes(GOOD, {"a": VECTOR, "b": Entry((8,), offset=0)}))
    assert GGUFFile.open(path).tensors["b"].offset == GGUFFile.open(path).tensors["a"].offset


PREFIX: Architecture = "qwen35moe"
BAD_KEYS: list[tuple[str, Any, list[str]]] = [
    ("general.architecture", None, ["general.architecture", "missing"]),
    ("general.architecture", 5, ["general.architecture", "an integer", "a string"]),
    ("general.architecture", "llama", ["'llama'", "qwen35, qwen35moe, qwen3next"]),
    ("general.architecture", "llama" * 999, ["'llamallama", "..."]),
    (f"{PREFIX}.block_count", None, ["block_count", "missing"]),
    (f"{PREFIX}.block_count", "5", ["block_count", "is a string, expected an integer"]),
    (f"{PREFIX}.block_count", 5.0, ["block_count", "is a float, expected an integer"]),
    (f"{PREFIX}.block_count", True, ["block_count", "is a boolean"]),
    (f"{PREFIX}.block_count", 2**32 - 1, ["block_count", str(2**32 - 1), "at most"]),
    (f"{PREFIX}.block_count", 1, ["block_count", "is 1", "at least 2"]),
    (f"{PREFIX}.block_count", 9, ["'blk.4.attn_qkv.weight'", "missing"]),
    (f"{PREFIX}.nextn_predict_layers", 2, ["nextn_predict_layers", "is 2"]),
    (f"{PREFIX}.embedding_length", 128, ["'token_embd.weight'", "(320, 64)", "(320, 128)"]),
    (f"{PREFIX}.embedding_length", 0, ["embedding_length", "is 0"]),
    (f"{PREFIX}.attention.head_count", np.array([4.0, 4.0], "f4"), ["attention.head_count", "an array of float32"]),
    (f"{PREFIX}.attention.head_count_kv", 3, ["head_count_kv", "is 3", "divisor"]),
    (f"{PREFIX}.attention.key_length", 24, ["key_length", "is 24", "a multiple of 16"]),
    (f"{PREFIX}.attention.value_length", 16, ["value_length", "is 16"]),
    (f"{PREFIX}.attention.layer_norm_rms_epsilon", float("nan"), ["layer_norm_rms_epsilon", "nan"]),
    (f"{PREFIX}.attention.layer_norm_rms_epsilon", "small", ["layer_norm_rms_epsilon", "is a string"]),
    (f"{PREFIX}.attention.recurrent_layers", np.array([1, 0], "i4"), ["recurrent_layers", "an array of int32"]),
    (f"{PREFIX}.attention.recurrent_layers", np.array([True]), ["recurrent_layers", "1 entries", "5"]),
    (f"{PREFIX}.full_attention_interval", 0, ["full_attention_interval", "is 0"]),
    (f"{PREFIX}.rope.dimension_count", 33, ["rope.dimension_count", "is 33"]),
    (f"{PREFIX}.rope.dimension_count", 64, ["rope.dimension_count", "is 64", "up to the head dimension 32"]),
    (f"{PREFIX}.rope.freq_base", 0.0, ["rope.freq_base", "is 0.0"]),
    (f"{PREFIX}.rope.scaling.type", "longrope", ["rope.scaling.type", "'longrope'", "not supported"]),
    (f"{PREFIX}.rope.scaling.yarn_attn_factor", 2.0, ["rope.scaling.yarn_attn_factor", "2.0", "not supported"]),
    (f"{PREFIX}.rope.scaling.yarn_log_multiplier", 0.1, ["yarn_log_multiplier", "0.1", "not supported"]),
    (f"{PREFIX}.rope.scaling.alpha", 7.0, ["rope.scaling.alpha", "7.0", "not supported"]),
    (f"{PREFIX}.rope.scaling.factor", 4.0, ["rope.scaling.factor", "4.0"]),
    (f"{PREFIX}.rope.scaling.factor", ["4"], ["rope.scaling.factor", "an array of strings"]),
    (f"{PREFIX}.ssm.conv_kernel", 3, ["ssm.conv_kernel", "is 3", "expected 4"]),
    (f"{PREFIX}.ssm.group_count", 3, ["ssm.time_step_rank", "is 4", "multiple of the 3"]),
    (f"{PREFIX}.ssm.inner_size", 100, ["ssm.inner_size", "is 100", "128"]),
    (f"{PREFIX}.ssm.state_size", 40, ["ssm.state_size", "is 40", "a multiple of 16"]),
    (f"{PREFIX}.ssm.state_size", 2**31, ["ssm.inner_size"]),
    (f"{PREFIX}.expert_used_count", 9, ["expert_used_count", "is 9", "8 experts"]),
    (f"{PREFIX}.expert_count", None, ["expert_count", "missing"]),
    (f"{PREFIX}.expert_weights_norm", 1, ["expert_weights_norm", "is an integer, expected a boolean"]),
    (f"{PREFIX}.expert_gating_func", 2, ["expert_gating_func", "is 2"]),
    ("tokenizer.ggml.tokens", None, ["tokenizer.ggml.tokens", "missing"]),
    ("tokenizer.ggml.tokens", [], ["tokenizer.ggml.tokens", "empty"]),
    ("tokenizer.ggml.tokens", "abc", ["tokenizer.ggml.tokens", "is a string"]),
    ("tokenizer.ggml.tokens", np.zeros(320, "i4"), ["tokenizer.ggml.tokens", "an array of int32"]),
]


@pytest.mark.parametrize(("key", "value", "words"), BAD_KEYS, ids=lambda item: str(item)[:40])
def test_bad_keys(tmp_path: Path, key: str, value: Any, words: list[str]) -> None:
    def change(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        pairs.pop(key, None)
        if value is not None:
            pairs[key] = value

    path = changed(tmp_path, change, PREFIX)
    with refused("changed.gguf", *words):
        open_model(path)


BAD_TENSORS: list[tuple[Architecture, str, str]] = [
    ("qwen35", "token_embd.weight", "(320, 64)"),
    ("qwen35", "output_norm.weight", "(64,)"),
    ("qwen35", "blk.0.ssm_alpha.weight", "(4, 64)"),
    ("qwen35", "blk.3.attn_q_norm.weight", "(32,)"),
    ("qwen35", "blk.0.ffn_down.weight", "(64, 128)"),
    ("qwen35", "blk.4.nextn.eh_proj.weight", "(64, 128)"),
    ("qwen35moe", "blk.0.ffn_gate_exps.weight", "(8, 32, 64)"),
    ("qwen35moe", "blk.4.ffn_down_exps.weight", "(8, 64, 32)"),
    ("qwen3next", "blk.1.ssm_ba.weight", "(8, 64)"),
]


@pytest.mark.parametrize(("architecture", "name", "shape"), BAD_TENSORS)
def test_missing_and_misshapen_tensors(tmp_path: Path, architecture: Architecture, name: str, shape: str) -> None:
    def drop(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        del tensors[name]

    def shorten(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        tensors[name] = Entry((*tensors[name].ne[:-1], 2), tensors[name].data)

    with refused(f"'{name}'", shape, "missing"):
        open_model(changed(tmp_path, drop, architecture))
    with refused(f"'{name}'", f"expected {shape}"):
        open_model(changed(tmp_path, shorten, architecture))


def test_legacy_layout(tmp_path: Path) -> None:
    def legacy(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        tensors["blk.0.ssm_in.weight"] = tensors.pop("blk.0.attn_qkv.weight")
        del tensors["blk.0.attn_gate.weight"]

    with refused("'blk.0.ssm_in.weight'", "early qwen3next", "convert the model again"):
        open_model(changed(tmp_path, legacy, "qwen3next"))


@pytest.mark.parametrize("name", ["blk.0.attn_qkv.bias", "blk.0.ffn_up.scales", "rope_freqs.weight", "blk.4.unknown"])
def test_tensors_that_nobody_would_apply(tmp_path: Path, name: str) -> None:
    def add(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        tensors[name] = VECTOR

    with refused(f"'{name}'", "not known"):
        open_model(changed(tmp_path, add))


def test_a_type_without_values(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_bytes(GOOD, {"t": Entry((8,), bytes(32), type=26)}))  # I32
    with refused("'t'", "I32", "another quantisation"):
        GGUFFile.open(path).array("t")


def test_every_truncation(tmp_path: Path) -> None:
    """A file cut anywhere is refused."""
    data = gguf_bytes(
        {**GOOD, "texts": ["a", "bc"], "numbers": np.arange(3, dtype="i4"), "flag": True, "half": 0.5},
        {"first": VECTOR, "second": Entry((4, 2), bytes(32))},
    )
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    GGUFFile.open(path)
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(TrigraphError):
            GGUFFile.open(path)


def test_random_damage(tmp_path: Path) -> None:
    """Whatever the bytes of a header are: a model, or a TrigraphError, soon and without a large allocation."""
    path = write_random(tmp_path / "a.gguf", "qwen35moe", preset="nano", layers=2, interval=2, mtp=False, experts=2)
    original, header = path.read_bytes(), GGUFFile.open(path).header_bytes[path]
    rng, refusals = np.random.default_rng(11), 0
    extremes = [bytes(8), b"\xff" * 8, struct.pack("<Q", HUGE), struct.pack("<Q", 2**32), struct.pack("<Q", 2**61 + 1)]
    tracemalloc.start()
    for round_number in range(600):
        data = bytearray(original)
        for _ in range(rng.integers(1, 4)):
            # Half of the damage goes to the part without token texts, where lengths and types are dense.
            at = int(rng.integers(0, header) if round_number % 2 else rng.integers(0, 1500))
            if rng.random() < 0.5:
                data[at] = rng.integers(0, 256)
            else:
                data[at : at + 8] = extremes[rng.integers(len(extremes))]
        if rng.random() < 0.1:
            del data[int(rng.integers(0, len(data))) :]
        path.write_bytes(data)
        tracemalloc.reset_peak()
        start = time.thread_time()
        try:
            open_model(path)
        except TrigraphError as error:
            refusals += 1
            assert "\n" not in str(error) and len(str(error)) < 1000
        assert time.thread_time() - start < MAX_SECONDS
        assert tracemalloc.get_traced_memory()[1] - tracemalloc.get_traced_memory()[0] < MAX_BYTES
    tracemalloc.stop()
    assert refusals > 100
