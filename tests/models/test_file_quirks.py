"""What people's files have that converters of today do not write: read as it is meant, or refused with the remedy."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from support.models.gguf_bytes import Entry, Raw, gguf_bytes, string
from support.models.random_gguf import changed, write_random
from trigraph.models import TrigraphError, open_model
from trigraph.models.tokenizer import chat_template, special_tokens

Pairs: TypeAlias = dict[str, Any]
Tensors: TypeAlias = dict[str, Entry]
NO_TEXT = Raw(struct.pack("<I", 8) + string(b"caf\xe9"))


def update(**pairs: Any) -> Callable[[Pairs, Tensors], None]:
    return lambda found, tensors: found.update({key.replace("__", "."): value for key, value in pairs.items()})


def reshape(part: str, ne: Callable[[Entry], tuple[int, ...]]) -> Callable[[Pairs, Tensors], None]:
    def change(pairs: Pairs, tensors: Tensors) -> None:
        for name, entry in tensors.items():
            if part in name:
                tensors[name] = Entry(ne(entry), entry.data, entry.type)

    return change


READ: dict[str, Callable[[Pairs, Tensors], None]] = {
    "Unsloth": update(
        general__quantized_by="Unsloth",
        general__tags=["qwen", "unsloth"],
        general__base_model__count=1,
        general__sampling__temp=0.6,
        quantize__imatrix__file="imatrix_unsloth.gguf",
        quantize__imatrix__entries_count=496,
        tokenizer__ggml__add_space_prefix=False,
    ),
    "a description that is not UTF-8": update(general__description=NO_TEXT),
    "a name that is a number": update(general__name=5),
    "no token by 32 bits": update(tokenizer__ggml__bos_token_id=2**32 - 1, tokenizer__ggml__padding_token_id=2**32 - 1),
    "no token by -1": update(tokenizer__ggml__eot_token_id=Raw(struct.pack("<Ii", 5, -1))),
    "numbers of other widths": update(
        qwen35__block_count=Raw(struct.pack("<IQ", 10, 5)),
        qwen35__embedding_length=Raw(struct.pack("<Ii", 5, 64)),
        qwen35__attention__head_count=Raw(struct.pack("<IH", 2, 4)),
        qwen35__attention__layer_norm_rms_epsilon=Raw(struct.pack("<Id", 12, np.float32(1e-6))),
        qwen35__rope__freq_base=10_000_000,
    ),
    "head counts as arrays": update(
        qwen35__attention__head_count=np.array([4] * 5, "i4"),
        qwen35__feed_forward_length=np.array([128] * 5, "i4"),
        qwen35__attention__head_count_kv=np.array([0, 0, 0, 2, 2], "i4"),
    ),
    "a convolution with a dimension of 1": reshape("ssm_conv1d", lambda entry: (4, 1, entry.ne[1])),
    "vectors with a dimension of 1": reshape("ssm_a", lambda entry: (*entry.ne, 1)),
    "keys of a split that was merged": update(split__no=0, split__count=0, split__tensors__count=0),
    "several templates": update(
        tokenizer__chat_template="default",
        tokenizer__chat_template__tool_use="other",
        tokenizer__chat_templates=["tool_use"],
    ),
    "types of tokens as unsigned numbers": lambda pairs, tensors: pairs.update(
        {"tokenizer.ggml.token_type": pairs["tokenizer.ggml.token_type"].astype("u4")}
    ),
}


@pytest.mark.parametrize("quirk", READ)
def test_read(tmp_path: Path, quirk: str) -> None:
    model = open_model(changed(tmp_path, READ[quirk]))
    ours = open_model(tmp_path / "original.gguf")
    assert vars(model.config) | {"name": ""} == vars(ours.config) | {"name": ""}
    assert model.config.name in (ours.config.name, "changed")
    for name in ours.tensors:
        assert model.array(name).tobytes() == ours.array(name).tobytes()
        assert model.tensor(name).shape == ours.tensor(name).shape
    special = special_tokens(model.file.metadata)
    assert special.stop == special_tokens(ours.file.metadata).stop
    assert chat_template(model.file.metadata) == ("default" if quirk == "several templates" else None)


@pytest.mark.parametrize("template", ["", " \n"])
def test_an_empty_template_is_none(template: str) -> None:
    assert chat_template({"tokenizer.chat_template": template}) is None


REFUSED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "big-endian": (lambda file: file[:4] + struct.pack(">I", 3) + file[8:], "big-endian GGUF file; convert it"),
    "version 1": (lambda file: file[:4] + struct.pack("<I", 1) + file[8:], "has GGUF version 1"),
    "LFS": (
        lambda file: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        "run|fetch it with 'git lfs pull'",
    ),
    "web page": (lambda file: b"<!DOCTYPE html><html><head>" + b" " * 99, "is a web page; download the file itself"),
    "ZIP": (lambda file: b"PK\x03\x04" + file, "is a ZIP archive; unpack it"),
    "gzip": (lambda file: b"\x1f\x8b\x08" + file, "is compressed by gzip; unpack it"),
    "old": (lambda file: b"tjgg" + file, "is a file from before GGUF"),
    "zeros": (lambda file: bytes(len(file)), "starts with zeros; its download did not finish"),
    "safetensors": (lambda file: struct.pack("<Q", 80) + b'{"a":{}}' + b" " * 80, "is a safetensors file"),
    "empty": (lambda file: b"", "has only 0 bytes"),
    "cut off": (lambda file: file[:-1], "truncated or damaged, download it again"),
    "imatrix": (
        lambda file: gguf_bytes({"general.architecture": "imatrix"}),
        r"holds an importance matrix \(imatrix\)",
    ),
    "adapter": (
        lambda file: gguf_bytes({"general.architecture": "qwen35", "general.type": "adapter"}),
        r"holds an adapter \(LoRA\) alone; give the file of the text model",
    ),
    "array of arrays": (
        lambda file: gguf_bytes({"general.x": Raw(struct.pack("<IIQ", 9, 9, 0))}),
        "'general.x' is an array of arrays, which is not supported",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(tmp_path: Path, kind: str) -> None:
    change, words = REFUSED[kind]
    source = write_random(tmp_path / "a.gguf", "qwen35", preset="nano").read_bytes()
    (tmp_path / "b.gguf").write_bytes(change(source))
    with pytest.raises(TrigraphError, match=rf"^{tmp_path}/b\.gguf: .*({words})"):
        open_model(tmp_path / "b.gguf")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("head_count", [4, 2, 4, 4], r"\[4, 2, 4, 4\], and layers that differ in it are not supported"),
        ("head_count_kv", [0, 0, 0, 0], r"\[0, 0, 0, 0\], and layers that differ"),
        ("head_count_kv", [-2, 0, 0, 0], r"\[-2, 0, 0, 0\], and layers that differ"),
        ("head_count_kv", [0, 2], "has 2 entries, expected 5, one for each layer"),
    ],
)
def test_layers_that_differ(tmp_path: Path, key: str, value: list[int], words: str) -> None:
    change = update(**{f"qwen35__attention__{key}": np.array(value, "i4")})
    with pytest.raises(TrigraphError, match=rf"key 'qwen35\.attention\.{key}' (is )?{words}"):
        open_model(changed(tmp_path, change))


def test_trailing_data_does_no_harm(tmp_path: Path) -> None:
    path = write_random(tmp_path / "a.gguf", "qwen35", preset="nano")
    path.write_bytes(path.read_bytes() + b"x" * 1000)
    assert open_model(path).config.trunk_layers == 4


def test_parts_of_a_split(tmp_path: Path) -> None:
    first = write_random(tmp_path / "m.gguf", "qwen35", preset="nano", split_tensors=30)
    names = sorted(path.name for path in tmp_path.glob("*.gguf"))
    assert open_model(tmp_path / names[2]).config == open_model(first).config
    joined = tmp_path / "joined.gguf"
    joined.write_bytes(b"".join((tmp_path / name).read_bytes() for name in names))
    for path in (joined, (tmp_path / names[0]).rename(tmp_path / "m-00001-of-00003 (1).gguf")):
        with pytest.raises(TrigraphError, match=r"is one of 3 parts, .* join them with 'llama-gguf-split --merge'"):
            open_model(path)
    with pytest.raises(TrigraphError, match=rf"{names[0]}: is missing; put all 3 parts into one folder"):
        open_model(tmp_path / names[1])
