"""Reading well-formed GGUF files: against the `gguf` package, split files, and the time that a real header takes."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from support.models.gguf_bytes import Entry, Raw, gguf_bytes
from support.models.random_gguf import write_random
from trigraph.models import GGUFFile, TrigraphError


def test_matches_the_gguf_package(tmp_path: Path) -> None:
    types = {"*ffn_down*": "Q6_K", "*attn_q.*": "Q5_0", "*attn_k.*": "BF16", "*attn_v.*": "F16", "*ffn_up*": "IQ4_XS"}
    path = write_random(tmp_path / "a.gguf", "qwen35moe", preset="blocks", dtype="Q4_K", types=types)
    file, reader = GGUFFile.open(path), gguf.GGUFReader(path)
    assert {tensor.type for tensor in file.tensors.values()} >= {"Q4_K", "Q6_K", "Q5_0", "BF16", "F16", "IQ4_XS", "F32"}
    assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
    for theirs in reader.tensors:
        ours = file.tensors[theirs.name]
        assert (ours.type, ours.offset, ours.nbytes) == (theirs.tensor_type.name, theirs.data_offset, theirs.n_bytes)
        assert ours.shape == tuple(int(size) for size in reversed(theirs.shape))
        np.testing.assert_array_equal(file.raw(ours.name), theirs.data.reshape(-1).view(np.uint8))
        np.testing.assert_array_equal(
            file.array(ours.name), gguf.quants.dequantize(theirs.data, theirs.tensor_type).reshape(ours.shape)
        )
    for key, ours in file.metadata.items():
        theirs = reader.fields[key].contents()
        assert (ours.tolist() if isinstance(ours, np.ndarray) else ours) == theirs, key
    assert len(file.metadata) == len([key for key in reader.fields if not key.startswith("GGUF.")])
    assert file.header_bytes[path] == reader.data_offset
    assert file.header_sha256(path) == hashlib.sha256(path.read_bytes()[: reader.data_offset]).hexdigest()


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type(tmp_path: Path, version: int) -> None:
    path = tmp_path / "a.gguf"
    numbers = [np.array([3, 1], dtype) for dtype in ("u1", "i1", "u2", "i2", "u4", "i4", "f4", "u8", "i8", "f8")]
    pairs = {
        "int": 7, "float": 0.5, "true": True, "text": "héllo", "empty": "", "texts": ["", "ab", "é" * 300], "none": [],
        "wide": Raw(b"\x0a\0\0\0" + b"\xff" * 8), "flags": np.array([True, False]), "general.alignment": 64,
        **{f"array {numbers.dtype}": numbers for numbers in numbers},
    }  # fmt: skip
    data = {"a": Entry((3,), b"\0" * 12), "b": Entry((2, 1, 1, 2), np.arange(4, dtype="f4").tobytes())}
    path.write_bytes(gguf_bytes(pairs, data, version=version, alignment=64))
    file = GGUFFile.open(path)
    assert file.alignment == 64
    assert file.metadata["wide"] == 2**64 - 1
    assert type(file.metadata["true"]) is bool
    for key in ("int", "float", "text", "empty", "texts", "none"):
        assert file.metadata[key] == pairs[key]
    for array in [*numbers, np.array([True, False])]:
        found = file.metadata["flags" if array.dtype == np.bool_ else f"array {array.dtype}"]
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
    assert file.tensors["b"].shape == (2, 1, 1, 2)
    assert file.array("b").tolist() == [[[[0, 1]]], [[[2, 3]]]]


def test_split_files_are_joined(tmp_path: Path) -> None:
    whole = GGUFFile.open(write_random(tmp_path / "whole.gguf", "qwen35", preset="nano"))
    first = write_random(tmp_path / "parts.gguf", "qwen35", preset="nano", split_tensors=30)
    last = sorted(tmp_path.glob("parts-*.gguf"))[-1]
    assert first.name == "parts-00001-of-00003.gguf"
    for opened in (first, last):
        file = GGUFFile.open(opened)
        assert len(file.paths) == 3 and file.paths[0] == first
        assert sorted(file.tensors) == sorted(whole.tensors)
        assert len({tensor.file for tensor in file.tensors.values()}) == 3
        assert file.metadata["general.architecture"] == "qwen35"
        for name in whole.tensors:
            np.testing.assert_array_equal(file.raw(name), whole.raw(name))


def test_incomplete_or_foreign_parts(tmp_path: Path) -> None:
    first = write_random(tmp_path / "a.gguf", "qwen35", preset="nano", split_tensors=30)
    renamed = tmp_path / "renamed.gguf"
    shutil.copy(first, renamed)
    with pytest.raises(TrigraphError, match=r"one of 3 parts.*original names"):
        GGUFFile.open(renamed)
    second = tmp_path / "a-00002-of-00003.gguf"
    shutil.copy(tmp_path / "a-00003-of-00003.gguf", second)
    with pytest.raises(TrigraphError, match=r"a-00002-of-00003.gguf: split.no and split.count are \(2, 3\)"):
        GGUFFile.open(first)
    second.unlink()
    with pytest.raises(TrigraphError, match=r"a-00002-of-00003.gguf: is missing; put all 3 parts into one folder"):
        GGUFFile.open(first)


def test_part_names_stay_in_the_folder(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    write_random(tmp_path / "a.gguf", "qwen35", preset="nano", split_tensors=30)
    shutil.copy(tmp_path / "a-00001-of-00003.gguf", inside)
    with pytest.raises(TrigraphError, match=r"inside/a-00002-of-00003.gguf: is missing"):
        GGUFFile.open(inside / "a-00001-of-00003.gguf")


@pytest.mark.slow
def test_a_real_vocabulary_opens_with_few_calls(tmp_path: Path) -> None:
    """Half a million texts are read in well under a second, with at most 10 function calls for each."""
    path = tmp_path / "a.gguf"
    count = 248_320
    tokens = [f"{index:x}" for index in range(count)]
    pairs = {"tokens": tokens, "merges": [f"{token} a" for token in tokens], "types": np.ones(count, "i4")}
    path.write_bytes(gguf_bytes(pairs, {f"blk.{index}.weight": Entry((8,), b"\0" * 32) for index in range(1000)}))
    calls = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event.endswith("call")

    sys.setprofile(counted)
    try:
        file = GGUFFile.open(path)
    finally:
        sys.setprofile(None)
    assert calls < 10 * 2 * count
    assert file.metadata["tokens"] == tokens
