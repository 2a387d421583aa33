"""Factors of whole matrices, which files of NVFP4 have beside them: against llama.cpp and the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.host import Host
from support.models.random_gguf import Architecture, Item, write_random
from support.models.scaled import write_scaled
from support.operators.attention_step import assert_close
from support.oracles.llama import Llama, log_softmax
from trigraph.exporter import ExportOptions, export
from trigraph.models.errors import TrigraphError
from trigraph.models.gguf_file import GGUFFile
from trigraph.models.model import open_model
from trigraph.models.names import scale
from trigraph.models.reference import Reference


@pytest.mark.parametrize("architecture", ["qwen35", "qwen35moe"])
def test_llama_cpp(tmp_path: Path, architecture: Architecture) -> None:
    path = write_scaled(tmp_path / "a.gguf", architecture, mtp=False)  # it does not know those of a head it leaves out
    model = open_model(path)
    tokens = np.random.default_rng(0).integers(0, model.config.vocab, 20)
    expected = log_softmax(Reference(model).trunk(tokens)[1])
    found = Llama(path).log_probabilities(tokens.tolist(), model.config.vocab)
    assert np.corrcoef(found, expected[-1])[0, 1] > 0.998  # it rounds activations to 8 bits


@pytest.mark.parametrize("architecture", ["qwen35", "qwen35moe"])
def test_packages(tmp_path: Path, operator_library: Path, architecture: Architecture) -> None:
    path = write_scaled(tmp_path / "a.gguf", architecture)
    manifest = export(path, tmp_path / "package", ExportOptions(activations="float32", kv_type="f32"))
    assert any("factor" in notice for notice in manifest.notices) == (architecture != "qwen35")
    model = open_model(path)
    tokens = np.random.default_rng(0).integers(0, model.config.vocab, 20)
    inputs: dict[str, Any] = {"input_ids": tokens, "cu_seqlens": [0, 20], "prev_hidden": np.zeros((1, 256))}
    inputs |= {"page_table": [[0]], "past_lens": [0], "accepted": [0], "slots_in": [0], "slots_out": [0]}
    found = Host(tmp_path / "package", operator_library).run("prefill", **inputs)["logits"]
    # The gates of experts become Q8_0, which rounds.
    assert_close(found, Reference(model).trunk(tokens)[1][-1:], 1e-4 if architecture == "qwen35" else 0.05)


def test_a_factor_of_another_shape(tmp_path: Path) -> None:
    def two(item: Item) -> list[Item]:
        return [item, *[Item(scale(item.name), (2,), "norm")] * (item.name == "blk.0.ffn_up.weight")]

    path = write_random(tmp_path / "a.gguf", "qwen35", preset="nano", edit=two)
    assert "blk.0.ffn_up.scale" in GGUFFile.open(path).tensors
    with pytest.raises(TrigraphError, match=r"'blk.0.ffn_up.scale' has shape \(2,\), expected \(1,\)"):
        open_model(path)
