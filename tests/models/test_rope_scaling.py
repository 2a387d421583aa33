"""Contexts extended by YaRN, by keys of a file or `--rope-scaling`: against transformers, llama.cpp, the reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.host import Host
from support.models.gguf_bytes import contents, gguf_bytes
from support.models.random_gguf import Architecture, write_random
from support.operators.attention_step import Attention, Heads, assert_close, make_step
from support.operators.body import Body
from support.operators.run import Operator, same_bits
from support.oracles.llama import Llama, log_softmax
from support.oracles.transformers import load_transformers, run_trunk
from trigraph.custom_ops.paged_attention.reference import paged_attention, paged_kv_write
from trigraph.exporter import ExportOptions, export, read_manifest
from trigraph.models.errors import TrigraphError
from trigraph.models.model import open_model
from trigraph.models.reference import Reference
from trigraph.models.rope_scaling import RopeScaling
from trigraph.runtime.cache.identity import ModelIdentity

ORIGINAL = 64  # positions; texts are longer
KEYS: dict[str, Any] = {"type": "yarn", "factor": 4.0, "original_context_length": ORIGINAL}
CASES: dict[str, dict[str, Any]] = {
    "factor 4": {},
    "other turns": {"yarn_beta_fast": 8.0, "yarn_beta_slow": 2.0},
    "attention factor": {"attn_factor": 0.8},
}
SCALING: dict[str, Any] = {"rope_factor": 4.0, "rope_ramp_start": 2, "rope_ramp_end": 6, "rope_magnitude": 1.1386}


def write_scaled(path: Path, architecture: Architecture, keys: dict[str, Any]) -> Path:
    """A random model whose file has these keys of rope.scaling."""
    write_random(path, architecture)
    pairs, tensors = contents(path)
    pairs |= {f"{architecture}.rope.scaling.{key}": value for key, value in keys.items()}
    path.write_bytes(gguf_bytes(pairs, tensors))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("case", ["factor 4", "other turns"])
@pytest.mark.parametrize("architecture", ["qwen35", "qwen3next"])
def test_transformers(tmp_path: Path, architecture: Architecture, case: str) -> None:
    path = write_scaled(tmp_path / "a.gguf", architecture, KEYS | CASES[case])
    model = open_model(path)
    tokens = np.random.default_rng(0).integers(0, model.config.vocab, 200)
    found = Reference(model).trunk(tokens)[1]
    assert_close(found, run_trunk(load_transformers(model)[0], tokens)[1], 2e-4)


@pytest.mark.parametrize("case", ["factor 4", "attention factor"])  # it reads turns for other architectures only
def test_llama_cpp(tmp_path: Path, case: str) -> None:
    path = write_scaled(tmp_path / "a.gguf", "qwen35", KEYS | CASES[case])
    model = open_model(path)
    tokens = np.random.default_rng(0).integers(0, model.config.vocab, 200)
    expected = log_softmax(Reference(model).trunk(tokens)[1])
    llama = Llama(path, context=256)
    for count in (2, 65, 200):
        assert_close(llama.log_probabilities(tokens[:count].tolist(), model.config.vocab), expected[count - 1], 2e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8], ids=["f32", "q8_0"])
def test_operators(isa: str, dtype: Any) -> None:
    heads = Heads(width=64, group=3, dtype=dtype)
    attributes = heads.attributes | SCALING
    rotary: Any = heads.rotary | SCALING
    step = make_step(heads, [5, 70], [900, 3])
    write = Operator("PagedKVWrite", step.write, [dtype] * 2, attributes)
    key, value = write(*step.write, output_shapes=[step.past_key.shape] * 2)
    wanted = paged_kv_write(*step.write, **rotary)
    if dtype == np.float32:
        assert_close(np.nan_to_num(key), np.nan_to_num(wanted[0]), 4e-6)
    read = Operator("PagedAttention", step.attend(key, value), [np.float32], attributes)
    (y,) = read(*step.attend(key, value), output_shapes=[(75, 2 * 3 * 64)])
    assert_close(y, paged_attention(*step.attend(key, value), **rotary), 4e-6)
    if dtype == np.float32:
        of_body = Body("PagedAttention", list(step.attend(key, value)), [np.float32], attributes)
        assert_close(y, of_body(*step.attend(key, value))[0], 1e-5)
    assert not same_bits(y, Attention(heads).attend(step, key, value))


@pytest.mark.slow
def test_positions_near_a_million() -> None:
    """Keys of the last positions of four times 262,144, whose page alone is there: float32 angles would be far off."""
    heads = Heads(width=256, kv=1, group=1, page=64, dtype=np.float32)
    step = make_step(heads, [64], [0])
    step.past_lens = np.array([(1 << 20) - 64], np.int32)
    step.page_table = np.zeros((1, (1 << 20) // 64), np.int32)
    scaling = RopeScaling(4.0, 262144)
    start, end = scaling.ramp(64, 1e7)
    attributes = heads.rotary | {"rope_factor": 4.0, "rope_ramp_start": start, "rope_ramp_end": end}
    attributes |= {"rope_magnitude": scaling.magnitude}
    (found, _) = Operator("PagedKVWrite", step.write, [np.float32] * 2, attributes)(
        *step.write, output_shapes=[step.past_key.shape] * 2
    )
    torch = pytest.importorskip("torch", reason="torch is not installed: no comparison with transformers")
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    config = pytest.importorskip("transformers").Qwen3_5TextConfig(
        head_dim=256,
        max_position_embeddings=1 << 20,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "factor": 4.0,
            "original_max_position_embeddings": 262144,
        },
    )
    frequency, magnitude = utils.ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    assert magnitude == pytest.approx(0.1 * np.log(4) + 1)
    own = 1e7 ** (-np.arange(0, 64, 2) / 64)
    slow = np.clip((np.arange(32) - start) / (end - start), 0, 1)
    exact = own * (1 - slow) + own / 4 * slow
    np.testing.assert_allclose(frequency.numpy(), exact, rtol=1e-5)
    assert torch.all(frequency > 0)
    x = step.k.astype(np.float64)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * step.k_norm
    angle = ((1 << 20) - 64 + np.arange(64))[:, None] * exact
    cosine, sine = np.cos(angle) * magnitude, np.sin(angle) * magnitude
    a, b = x[:, :32], x[:, 32:64]
    wanted = np.concatenate([a * cosine - b * sine, b * cosine + a * sine, x[:, 64:]], -1)
    assert_close(found[0, :, 0], wanted, 4e-6)


def test_an_export_extends_the_context(tmp_path: Path, operator_library: Path) -> None:
    """`--rope-scaling` gives the logits of a file with the same keys, and another identity than the model as it is."""
    path = write_random(tmp_path / "plain.gguf", "qwen35", preset="nano")
    pairs, tensors = contents(path)
    pairs |= {"qwen35.rope.scaling.type": "yarn", "qwen35.rope.scaling.factor": 4.0}
    (tmp_path / "scaled.gguf").write_bytes(gguf_bytes(pairs, tensors))
    options = {"kv_type": "f32", "activations": "float32"}
    manifests = {
        name: export(tmp_path / file, tmp_path / name, ExportOptions(rope_scaling=scaling, **options))  # type: ignore[arg-type]
        for name, file, scaling in (
            ("plain", "plain.gguf", None),
            ("asked", "plain.gguf", "yarn:4"),
            ("own", "scaled.gguf", None),
            ("off", "scaled.gguf", "none"),
        )
    }
    lengths = {name: manifest.max_context for name, manifest in manifests.items()}
    assert lengths == {"plain": 4096, "asked": 4 * 4096, "own": 4 * 4096, "off": 4096}
    assert read_manifest(tmp_path / "asked").config.rope_scaling == RopeScaling(4.0, 4096)
    assert str(ModelIdentity.of(manifests["asked"])) != str(ModelIdentity.of(manifests["plain"]))
    for other in (RopeScaling(4.0, 4096, beta_fast=16.0), RopeScaling(4.0000001, 4096)):  # one file, other options
        config = replace(manifests["asked"].config, rope_scaling=other)
        assert ModelIdentity.of(replace(manifests["asked"], config=config)) != ModelIdentity.of(manifests["asked"])

    ids = np.arange(30)
    inputs: dict[str, Any] = {"input_ids": ids, "cu_seqlens": [0, 30], "prev_hidden": np.zeros((1, 64))}
    inputs |= {"page_table": [[0]], "past_lens": [0], "accepted": [0], "slots_in": [0], "slots_out": [0]}
    logits = {name: Host(tmp_path / name, operator_library).run("prefill", **inputs)["logits"] for name in manifests}
    assert same_bits(logits["asked"], logits["own"]) and same_bits(logits["plain"], logits["off"])
    assert not same_bits(logits["asked"], logits["plain"])
    expected = Reference(open_model(tmp_path / "scaled.gguf")).trunk(ids)[1][-1]
    assert_close(logits["asked"][0], expected, 1e-4)


@pytest.mark.parametrize(
    "text", ["yarn", "yarn:", "yarn:x", "yarn:1", "yarn:-4", "yarn:nan", "yarn:1e9", "linear:2", ""]
)
def test_other_scalings_are_refused(tmp_path: Path, nano_gguf: Path, text: str) -> None:
    with pytest.raises(TrigraphError, match=r"rope_scaling is .* expected none or yarn:FACTOR"):
        export(nano_gguf, tmp_path / "out", ExportOptions(rope_scaling=text))


def test_bad_attributes_are_refused() -> None:
    heads = Heads()
    step = make_step(heads, [1], [0])
    for attribute in ({"rope_factor": 0.5}, {"rope_factor": float("nan")}, {"rope_magnitude": 0.0}):
        with pytest.raises(Exception, match=f"attribute {next(iter(attribute))} is"):
            Operator("PagedKVWrite", step.write, [heads.dtype] * 2, heads.attributes | attribute)
