"""Malformed and unfit mmproj files, and which of several beside a model is taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.command import Run
from support.models.gguf_bytes import Entry, contents, gguf_bytes
from support.models.random_gguf import write_random
from trigraph.exporter import describe
from trigraph.models import TrigraphError, open_model
from trigraph.models.rope_positions import rope_sections
from trigraph.models.synth import write_synthetic, write_synthetic_mmproj
from trigraph.models.vision.tower import find_tower, open_tower

KEY = "clip.vision."
SIDE = "v.position_embd.weight"
BAD_KEYS: list[tuple[str, Any, list[str]]] = [
    ("general.architecture", "qwen35", ["'qwen35'", "expected 'clip'", "give an mmproj file"]),
    ("general.architecture", None, ["general.architecture", "missing"]),
    ("clip.projector_type", "gemma3", ["clip.projector_type", "'gemma3'", "'qwen3vl_merger'", "Qwen3.5"]),
    ("clip.projector_type", None, ["clip.projector_type", "missing"]),
    ("clip.has_vision_encoder", False, ["clip.has_vision_encoder", "is false"]),
    ("clip.use_gelu", 1, ["clip.use_gelu", "is an integer, expected a boolean"]),
    (f"{KEY}patch_size", 14, ["patch_size", "is 14, supported is 16"]),
    (f"{KEY}spatial_merge_size", 4, ["spatial_merge_size", "is 4, supported is 2"]),
    (f"{KEY}is_deepstack_layers", np.array([False, True]), ["is_deepstack_layers", "deepstack, as in Qwen3-VL"]),
    (f"{KEY}is_deepstack_layers", np.array([0, 1], "i4"), ["is_deepstack_layers", "an array of int32"]),
    (f"{KEY}block_count", 3, ["'v.blk.2.ln1.weight'", "missing"]),
    (f"{KEY}block_count", 1, ["'v.blk.1.attn_out.bias'", "not known"]),
    (f"{KEY}block_count", 2000, ["block_count", "at most 1024"]),
    (f"{KEY}embedding_length", 112, ["'v.patch_embd.weight'", "(96, 3, 16, 16)", "(112, 3, 16, 16)"]),
    (f"{KEY}feed_forward_length", 1, ["'v.blk.0.ffn_up.weight'", "(136, 96)", "(1, 96)"]),
    (f"{KEY}projection_dim", 64, ["'mm.2.weight'", "(256, 384)", "(64, 384)"]),
    (f"{KEY}attention.head_count", 5, ["attention.head_count", "is 5", "a width of 96"]),
    (f"{KEY}attention.head_count", 2**31, ["attention.head_count", str(2**31)]),
    (f"{KEY}attention.layer_norm_epsilon", 0.0, ["layer_norm_epsilon", "is 0.0"]),
    (f"{KEY}image_mean", np.array([0.5, np.nan, 0.5], "f4"), ["image_mean", "nan", "three numbers"]),
    (f"{KEY}image_std", np.array([0.5, 0.5, 0], "f4"), ["image_std", "three numbers"]),
    (f"{KEY}image_std", np.array([0.5, 0.5], "f4"), ["image_std", "three numbers"]),
    (f"{KEY}image_max_pixels", 0, ["image_max_pixels", "is 0"]),
    (f"{KEY}image_max_pixels", "1", ["image_max_pixels", "is a string"]),
]


def changed_tower(folder: Path, pairs: dict[str, Any], tensors: dict[str, Entry | None] | None = None) -> Path:
    """A small tower with other values of keys and other tensors; None removes one."""
    original = folder / "original.gguf"
    write_synthetic_mmproj("mmproj-tiny-dense", original)
    all_pairs, all_tensors = contents(original)
    original.unlink()
    kept = {key: value for key, value in (all_pairs | pairs).items() if value is not None}
    entries = {name: entry for name, entry in (all_tensors | (tensors or {})).items() if entry is not None}
    (folder / "changed.gguf").write_bytes(gguf_bytes(kept, entries))
    return folder / "changed.gguf"


def refused(path: Path, words: list[str], **how: Any) -> None:
    with pytest.raises(TrigraphError) as caught:
        open_tower(path, **how)
    text = str(caught.value)
    assert str(path) in text and "\n" not in text
    for word in words:
        assert word in text, text


@pytest.mark.parametrize(("key", "value", "words"), BAD_KEYS, ids=lambda item: str(item)[:40])
def test_bad_keys(tmp_path: Path, key: str, value: Any, words: list[str]) -> None:
    refused(changed_tower(tmp_path, {key: value}), words)


def test_contradicting_limits(tmp_path: Path) -> None:
    pairs = {f"{KEY}image_min_pixels": 5000, f"{KEY}image_max_pixels": 4096}
    refused(changed_tower(tmp_path, pairs), ["image_min_pixels", "is 5000", "4096"])


VECTOR = Entry((8,), b"\0" * 32)
BAD_TENSORS: list[tuple[str, Entry | None, list[str]]] = [
    (SIDE, None, ["missing"]),
    (SIDE, Entry((96, 65), bytes(96 * 65 * 4)), ["has 65 rows", "a square number"]),
    ("v.patch_embd.weight.1", None, ["(96, 3, 16, 16)", "missing"]),
    ("v.blk.1.attn_qkv.bias", VECTOR, ["(8,)", "expected (288,)"]),
    ("mm.0.weight", None, ["(384, 384)", "missing"]),
    ("v.deepstack.0.fc1.weight", VECTOR, ["not known in this tower"]),
]


@pytest.mark.parametrize(("name", "entry", "words"), BAD_TENSORS)
def test_bad_tensors(tmp_path: Path, name: str, entry: Entry | None, words: list[str]) -> None:
    refused(changed_tower(tmp_path, {}, {name: entry}), [name, *words])


def test_a_tower_of_another_model(tmp_path: Path) -> None:
    text = open_model(write_random(tmp_path / "a.gguf", "qwen35", preset="nano")).config
    refused(changed_tower(tmp_path, {}), ["projection_dim", "is 256", "is 64", "of the same model"], text=text)
    text = open_model(write_random(tmp_path / "b.gguf", "qwen3next", preset="nano", hidden=256)).config
    refused(changed_tower(tmp_path, {}), ["'qwen3next' read text alone"], text=text)


def test_a_text_model_that_is_a_tower(tmp_path: Path) -> None:
    write_synthetic_mmproj("mmproj-tiny-dense", tmp_path / "mmproj-a.gguf")
    with pytest.raises(TrigraphError, match=r"a vision tower \(mmproj\) alone; give the file of the text model"):
        open_model(tmp_path / "mmproj-a.gguf")


@pytest.mark.parametrize(
    "sections", [np.array([1, 2], "i4"), np.array([3, -3, 2, 0], "i4"), np.array([3, 3, 1, 1], "u4")]
)
def test_bad_sections(tmp_path: Path, sections: Any) -> None:
    pairs, tensors = contents(write_random(tmp_path / "a.gguf", "qwen35", preset="nano"))
    pairs["qwen35.rope.dimension_sections"] = sections
    (tmp_path / "b.gguf").write_bytes(gguf_bytes(pairs, tensors))
    model = open_model(tmp_path / "b.gguf")
    with pytest.raises(TrigraphError, match=r"rope\.dimension_sections' is \[.*\], expected sections of three axes"):
        rope_sections(model.file, model.config)


def test_the_first_that_fits_is_found(tmp_path: Path) -> None:
    write_synthetic("tiny-dense", tmp_path / "model.gguf")
    model = open_model(tmp_path / "model.gguf")
    assert find_tower(model) == (None, ())
    (tmp_path / "mmproj-a.gguf").write_bytes(b"x" * 30)
    write_synthetic_mmproj("mmproj-qwen3.5-0.8b", tmp_path / "mmproj-b.gguf", layers=1)
    tower, reasons = find_tower(model)
    assert tower is None and len(reasons) == 2 and "mmproj-b.gguf: key 'clip.vision.projection_dim'" in reasons[1]
    for name in ("mmproj-d.gguf", "mmproj-c.gguf", "other.gguf"):
        write_synthetic_mmproj("mmproj-tiny-dense", tmp_path / name)
    tower, reasons = find_tower(model)
    assert tower is not None and tower.file.paths[0].name == "mmproj-c.gguf" and not reasons


def test_hash(tmp_path: Path) -> None:
    """Of what a tower computes: not of its name, but of every weight and constant."""
    original = open_tower(changed_tower(tmp_path, {})).sha256()
    assert open_tower(changed_tower(tmp_path, {"general.name": "another"})).sha256() == original
    assert open_tower(changed_tower(tmp_path, {f"{KEY}attention.layer_norm_epsilon": 1e-5})).sha256() != original
    bias = Entry((256,), bytes(1024))
    assert open_tower(changed_tower(tmp_path, {}, {"mm.2.bias": bias})).sha256() != original


def test_inspect_shows_it(trigraph: Run, tmp_path: Path) -> None:
    model, tower = tmp_path / "model.gguf", tmp_path / "mmproj-[red].gguf"
    assert trigraph("synth", "tiny-dense", model).status == 0
    assert json.loads(trigraph("inspect", model, "--json").out)["vision"] is None
    assert "vision" not in trigraph("inspect", model).out
    assert trigraph("synth", "mmproj-tiny-dense", tower, "--quant", "Q8_0").status == 0
    found = json.loads(trigraph("inspect", model, "--json").out)["vision"]
    assert (found["path"], found["config"]["layers"], found["config"]["hidden"]) == (str(tower), 2, 256)
    size = sum(tensor.nbytes for tensor in open_tower(tower).tensors.values())
    assert (found["parameters"], found["bytes"]) == (open_tower(tower).parameters, size)
    text = " ".join(trigraph("inspect", model).out.split())
    assert "2 layers of width 96, 4 heads of 24" in text and "mmproj-[red].gguf" in text and "32 x 32 pixels" in text

    elsewhere = tower.rename(tmp_path / "other.gguf")
    assert describe(model).vision is None
    assert "2 layers of width 96" in trigraph("inspect", model, "--mmproj", elsewhere).out
    wrong = trigraph("inspect", model, "--mmproj", model)
    assert (wrong.status, "expected 'clip'" in wrong.err) == (2, True)
    model.with_name("mmproj-[b].gguf").write_bytes(b"no file of GGUF, but of thirty bytes")
    assert "is not a GGUF file" in " ".join(trigraph("inspect", model).out.split())


@pytest.mark.parametrize("options", [["--no-mtp"], ["--vocab", 512], ["--experts", 2]])
def test_options_of_text_models(trigraph: Run, tmp_path: Path, options: list[object]) -> None:
    result = trigraph("synth", "mmproj-tiny-dense", tmp_path / "a.gguf", *options)
    assert (result.status, "is a vision tower; leave --vocab, --experts, --no-mtp and --hollow out" in result.err) == (
        2,
        True,
    )
