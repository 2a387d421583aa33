"""Configuration and tensor inventory of every architecture and variant."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from support.models.gguf_bytes import Entry
from support.models.random_gguf import PRESETS, Architecture, changed, write_random
from trigraph.models import GGUFFile, TrigraphError, open_model
from trigraph.models.config import read_config

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_config(tmp_path: Path, architecture: Architecture) -> None:
    g = PRESETS["tiny"]
    config = open_model(write_random(tmp_path / "a.gguf", architecture)).config
    assert (config.architecture, config.name) == (architecture, f"random-{architecture}-tiny")
    assert (config.trunk_layers, config.mtp_layers) == (8, 1)
    assert config.recurrent == (True, True, True, False) * 2
    assert (config.hidden, config.vocab, config.context_length) == (g.hidden, g.vocab, g.context)
    assert (config.heads, config.kv_heads, config.head_dim) == (g.heads, g.kv_heads, g.head_dim)
    assert (config.rope_dims, config.rope_theta, config.conv_kernel) == (g.rope_dims, g.rope_theta, 4)
    assert config.rms_eps == np.float32(1e-6)
    assert (config.gdn_k_heads, config.gdn_v_heads, config.gdn_head_dim) == (g.k_heads, g.v_heads, g.gdn_dim)
    assert (config.key_dim, config.value_dim, config.gdn_channels) == (128, 256, 512)
    assert config.gdn_tiled == (architecture != "qwen3next")
    moe = (config.experts, config.experts_used, config.expert_ffn, config.shared_ffn, config.ffn)
    assert moe == ((0, 0, 0, 0, g.ffn) if architecture == "qwen35" else (16, 4, 64, 96, 0))
    assert config.normalize_experts and not config.tied


def test_tied_output(tmp_path: Path) -> None:
    model = open_model(write_random(tmp_path / "a.gguf", "qwen35", preset="nano", tied=True))
    assert model.config.tied and model.find("output.weight") is None


@pytest.mark.parametrize("fused", [False, True])
def test_expert_layouts(tmp_path: Path, fused: bool) -> None:
    model = open_model(write_random(tmp_path / "a.gguf", "qwen35moe", preset="nano", fused=fused))
    assert (model.find("blk.0.ffn_gate_up_exps.weight") is not None) == fused
    assert (model.find("blk.0.ffn_gate_exps.weight") is None) == fused


def test_layers_by_interval_and_by_list(tmp_path: Path) -> None:
    every_third = write_random(tmp_path / "a.gguf", "qwen35", preset="nano", layers=5, interval=3)
    assert open_model(every_third).config.recurrent == (True, True, False, True, True)
    pattern = [False, True, False, True]
    listed = write_random(tmp_path / "b.gguf", "qwen35", preset="nano", recurrent=pattern)
    assert open_model(listed).config.recurrent == tuple(pattern)

    def without_interval(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        del pairs["qwen35.full_attention_interval"]

    assert open_model(changed(tmp_path, without_interval)).config.recurrent == (True, True, True, False)


@pytest.mark.parametrize("architecture", ["qwen35moe", "qwen3next"])
def test_expert_weights_norm(tmp_path: Path, architecture: Architecture) -> None:
    """Qwen3-Next can do without; the later models cannot, and early files of Ollama say so nonetheless."""
    normed = architecture == "qwen35moe"
    for key in ("expert_weights_norm", "norm_top_k_prob"):

        def off(pairs: dict[str, Any], tensors: dict[str, Entry], key: str = key) -> None:
            pairs[f"{architecture}.{key}"] = False

        assert open_model(changed(tmp_path, off, architecture)).config.normalize_experts == normed


def test_optional_head_tensors(tmp_path: Path) -> None:
    def change(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        del tensors["blk.4.nextn.shared_head_norm.weight"]
        tensors["blk.4.nextn.embed_tokens.weight"] = tensors["token_embd.weight"]
        tensors["blk.4.nextn.shared_head_head.weight"] = tensors["output.weight"]

    model = open_model(changed(tmp_path, change))
    assert model.find("blk.4.nextn.shared_head_norm.weight") is None
    assert model.tensor("blk.4.nextn.embed_tokens.weight").shape == (320, 64)
    assert model.find("blk.4.nextn.shared_head_head.weight") is not None


def test_leading_ones_are_dropped(tmp_path: Path) -> None:
    def change(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        name = "blk.0.ffn_gate_inp_shexp.weight"
        tensors[name] = Entry((*tensors[name].ne, 1), tensors[name].data)

    model = open_model(changed(tmp_path, change, "qwen35moe"))
    assert model.tensor("blk.0.ffn_gate_inp_shexp.weight").shape == (64,)
    assert model.array("blk.0.ffn_gate_inp_shexp.weight").shape == (64,)


def test_trunk_only(tmp_path: Path) -> None:
    model = open_model(write_random(tmp_path / "a.gguf", "qwen35", preset="nano", mtp=False))
    assert (model.config.trunk_layers, model.config.mtp_layers, model.mtp_file) == (4, 0, None)

    def only_the_tensors_are_gone(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        for name in [name for name in tensors if name.startswith("blk.4.")]:
            del tensors[name]

    config = open_model(changed(tmp_path, only_the_tensors_are_gone)).config
    assert (config.trunk_layers, config.mtp_layers) == (4, 0)


def test_head_in_a_file_of_its_own(tmp_path: Path) -> None:
    trunk = write_random(tmp_path / "trunk.gguf", "qwen35", preset="nano", mtp=False)
    head = write_random(tmp_path / "mtp-head.gguf", "qwen35", preset="nano", mtp="only", dtype="Q8_0")
    model = open_model(trunk, head)
    assert (model.config.trunk_layers, model.config.mtp_layers) == (4, 1)
    assert model.mtp_file is not None
    assert model.tensor("blk.4.nextn.eh_proj.weight").file == head
    assert model.tensor("token_embd.weight").file == trunk
    assert model.array("blk.4.attn_q.weight").shape == (2 * 4 * 32, 64)
    assert model.raw("blk.4.attn_q.weight").nbytes == model.tensor("blk.4.attn_q.weight").nbytes


def test_a_given_head_replaces_the_one_inside(tmp_path: Path) -> None:
    whole = write_random(tmp_path / "whole.gguf", "qwen35", preset="nano")
    head = write_random(tmp_path / "mtp-head.gguf", "qwen35", preset="nano", mtp="only", seed=2)
    assert open_model(whole, head).tensor("blk.4.nextn.eh_proj.weight").file == head


def test_companions_that_do_not_fit(tmp_path: Path) -> None:
    trunk = write_random(tmp_path / "trunk.gguf", "qwen35", preset="nano", mtp=False)
    head = write_random(tmp_path / "head.gguf", "qwen35", preset="nano", mtp="only")
    deeper = write_random(tmp_path / "deeper.gguf", "qwen35", preset="nano", mtp="only", layers=8)
    other = write_random(tmp_path / "other.gguf", "qwen35moe", preset="nano", mtp="only")
    with pytest.raises(TrigraphError, match=r"head.gguf: holds only the MTP head; give the model's own file"):
        open_model(head)
    with pytest.raises(TrigraphError, match=r"trunk.gguf: has no MTP head"):
        open_model(trunk, trunk)
    with pytest.raises(TrigraphError, match=r"deeper.gguf: trunk_layers is 8, but 4 in trunk.gguf"):
        open_model(trunk, deeper)
    with pytest.raises(TrigraphError, match=r"other.gguf: architecture is qwen35moe, but qwen35 in"):
        open_model(trunk, other)


def test_split_files(tmp_path: Path) -> None:
    whole = open_model(write_random(tmp_path / "whole.gguf", "qwen3next", preset="nano"))
    split = open_model(write_random(tmp_path / "split.gguf", "qwen3next", preset="nano", split_tensors=40))
    assert len(split.file.paths) > 1
    assert split.tensors.keys() == whole.tensors.keys()
    for name in whole.tensors:
        np.testing.assert_array_equal(split.array(name), whole.array(name))


def test_inventory_holds_every_tensor(tmp_path: Path) -> None:
    """So nothing that a file holds is left out silently."""
    for architecture in ARCHITECTURES:
        model = open_model(write_random(tmp_path / f"{architecture}.gguf", architecture, preset="nano"))
        assert model.tensors.keys() == model.file.tensors.keys()
        assert read_config(GGUFFile.open(model.file.paths[0])) == model.config
