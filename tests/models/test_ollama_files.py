"""Files that Ollama has written, against those of llama.cpp's converter with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from support.models.gguf_bytes import Entry, contents, gguf_bytes
from support.models.ollama_files import Norms, as_imported, as_published
from support.models.random_gguf import Architecture, write_random
from trigraph.models import TrigraphError, open_model
from trigraph.models.model import Model
from trigraph.models.rope_positions import rope_sections
from trigraph.models.synth import write_synthetic, write_synthetic_mmproj
from trigraph.models.tokenizer import special_tokens
from trigraph.models.vision.reference import TowerReference
from trigraph.models.vision.tower import Tower, find_tower, open_tower

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)


def check_same(theirs: Model | Tower, ours: Model | Tower) -> None:
    """The same tensors with the same values."""
    assert theirs.tensors.keys() == ours.tensors.keys()
    for name, tensor in ours.tensors.items():
        assert (theirs.tensor(name).type, theirs.tensor(name).shape) == (tensor.type, ours.tensor(name).shape), name
        assert theirs.array(name).tobytes() == ours.array(name).tobytes(), name


@pytest.mark.parametrize("norms", get_args(Norms))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_published(tmp_path: Path, architecture: Architecture, norms: Norms) -> None:
    """Arrays of key-value heads, `ssm_dt` by itself, an MTP head in `mtp.*`, each expert by itself."""
    source = write_random(tmp_path / "a.gguf", architecture, preset="blocks", dtype="Q4_K", layers=4)
    ours, theirs = open_model(source), open_model(as_published(source, tmp_path / "b.gguf", norms=norms))
    assert theirs.config.mtp_layers == 1
    assert vars(theirs.config) == vars(ours.config) | {"name": "b"}
    assert rope_sections(theirs.file, theirs.config) == rope_sections(ours.file, ours.config)
    check_same(theirs, ours)
    assert not theirs.notices and not theirs.file.others


def test_imported(tmp_path: Path) -> None:
    source = write_random(tmp_path / "a.gguf", "qwen35moe", preset="nano")
    theirs = open_model(as_imported(source, tmp_path / "b.gguf"))
    check_same(theirs, open_model(source))
    assert theirs.config.normalize_experts and not theirs.file.made


@pytest.mark.parametrize("quant", ["F16", "F32"])
def test_tower(tmp_path: Path, quant: str) -> None:
    """That of the model's own file is taken before one beside it; its embeddings are those of the mmproj file."""
    write_synthetic("tiny-dense", tmp_path / "a.gguf", quant="F32")
    write_synthetic_mmproj("mmproj-tiny-dense", tmp_path / "mmproj-a.gguf", quant=quant)
    theirs = open_model(as_published(tmp_path / "a.gguf", tmp_path / "b.gguf", tmp_path / "mmproj-a.gguf"))
    (found, reasons), ours = find_tower(theirs), open_tower(tmp_path / "mmproj-a.gguf")
    assert found is not None and found.file.paths == theirs.file.paths and not reasons
    assert vars(found.config) == vars(ours.config) | {"name": "b", "min_pixels": 65536, "max_pixels": 16777216}
    patches = np.random.default_rng(1).standard_normal((24, 768))
    np.testing.assert_array_equal(TowerReference(found)(patches, 4, 6), TowerReference(ours)(patches, 4, 6))
    assert open_tower(tmp_path / "b.gguf", theirs.config).sha256() == found.sha256() != ours.sha256()


def published(folder: Path, change: Any, architecture: Architecture = "qwen35") -> Path:
    """A published file that went through `change`."""
    source = write_random(folder / "original.gguf", architecture, preset="nano")
    pairs, tensors = contents(as_published(source, folder / "published.gguf"))
    change(pairs, tensors)
    (folder / "changed.gguf").write_bytes(gguf_bytes(pairs, tensors))
    return folder / "changed.gguf"


def test_other_towers_are_left_out(tmp_path: Path) -> None:
    def add(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        tensors |= {f"s.blk.{n}.ln.weight": Entry((2,), bytes(8)) for n in range(3)}
        tensors["mm.0.weight"] = Entry((2,), bytes(8))

    model = open_model(published(tmp_path, add))
    assert model.notices == ("3 tensors s.* are not used: models of qwen35 have none",)
    tower, (reason,) = find_tower(model)
    assert tower is None and "is 'qwen35', expected 'clip'" in reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p, t: t.update({"mtp.gate.weight": Entry((2,), bytes(8))}), "'mtp.gate.weight' is not known in it"),
        (lambda p, t: t.update({"mtp.layers.1.attn_q.weight": Entry((2,), bytes(8))}), "'mtp.layers.1.attn_q.weight'"),
        (lambda p, t: t.pop("mtp.layers.0.mlp.experts.3.up_proj.weight"), "ffn_up_exps.weight do not make one"),
        (lambda p, t: t.pop("mtp.layers.0.mlp.experts.0.up_proj.weight"), "ffn_up_exps.weight do not make one"),
    ],
)
def test_heads_that_cannot_be_read_are_left_out(tmp_path: Path, change: Any, reason: str) -> None:
    model = open_model(published(tmp_path, change, "qwen35moe"))
    assert model.config.mtp_layers == 0
    assert len(model.notices) == 1 and model.notices[0].startswith("the MTP head is left out: ")
    assert reason in model.notices[0]


def test_damaged(tmp_path: Path) -> None:
    """What is missing or of another shape is named as in files of llama.cpp's converter."""

    def drop(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        del tensors["mtp.fc.weight"]

    with pytest.raises(TrigraphError, match=r"'blk\.4\.nextn\.eh_proj\.weight' with shape \(64, 128\) is missing"):
        open_model(published(tmp_path, drop))

    def contradict(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        pairs["qwen35.block_count"] = "4"

    with pytest.raises(TrigraphError, match=r"'qwen35\.block_count' is a string, expected an integer"):
        open_model(published(tmp_path, contradict))


def test_towers_that_work_in_another_way(tmp_path: Path) -> None:
    write_synthetic("tiny-dense", tmp_path / "a.gguf", quant="F32")
    write_synthetic_mmproj("mmproj-tiny-dense", tmp_path / "tower.gguf")
    pairs, tensors = contents(as_published(tmp_path / "a.gguf", tmp_path / "b.gguf", tmp_path / "tower.gguf"))
    for key, value, words in [
        ("vision.deepstack_visual_indexes", np.array([5, 8], "i4"), "deepstack"),
        ("rope.mrope_interleaved", False, "'qwen35.rope.mrope_interleaved' is false"),
        ("vision.patch_size", 14, "patch_size' is 14"),
    ]:
        (tmp_path / "c.gguf").write_bytes(gguf_bytes(pairs | {f"qwen35.{key}": value}, tensors))
        model = open_model(tmp_path / "c.gguf")
        tower, (reason,) = find_tower(model)
        assert tower is None and words in reason
        with pytest.raises(TrigraphError, match=words):
            open_tower(tmp_path / "c.gguf", model.config)


def test_value_heads_that_were_not_reordered(tmp_path: Path) -> None:
    def keep(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        pairs["qwen35.ssm.v_head_reordered"] = False

    assert not open_model(published(tmp_path, keep)).config.gdn_tiled


def test_several_ends(tmp_path: Path) -> None:
    """`eos_token_ids` has all of them."""
    source = write_random(tmp_path / "a.gguf", "qwen35", preset="nano")
    metadata = dict(open_model(source).file.metadata)
    before = special_tokens(metadata)
    metadata["tokenizer.ggml.eos_token_ids"] = np.array([7, before.eos], "i4")
    assert special_tokens(metadata).stop == tuple(sorted({7, *before.stop}))
    del metadata["tokenizer.ggml.eos_token_id"]
    assert special_tokens(metadata).eos == 7
    for bad in (np.array([320], "i4"), np.array([-1], "i4"), [1], np.array([1.0], "f4")):
        with pytest.raises(TrigraphError, match=r"tokenizer\.ggml\.eos_token_ids"):
            special_tokens(metadata | {"tokenizer.ggml.eos_token_ids": bad})
