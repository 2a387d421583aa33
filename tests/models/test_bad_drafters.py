"""Malformed, unfit and foreign block drafters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.command import Run
from support.models.drafters import KINDS, Drafters
from support.models.gguf_bytes import Entry, contents, gguf_bytes
from trigraph.models import TrigraphError, open_model
from trigraph.models.drafter.drafter import open_drafter
from trigraph.models.synth import write_synthetic

KEY = "dflash."
BAD_KEYS: list[tuple[str, Any, list[str]]] = [
    ("general.architecture", "qwen35", ["'qwen35'", "expected 'dflash'", "give the file of a block drafter"]),
    ("general.architecture", "dflash-draft", ["'dflash-draft'", "forks", "convert the drafter with llama.cpp"]),
    ("general.architecture", None, ["general.architecture", "missing"]),
    (f"{KEY}hyper_connection.count", 4, ["hyper_connection.count", "is 4", "not supported", "a Qwen model"]),
    (f"{KEY}attention.value_scale", 0.5, ["attention.value_scale", "is 0.5", "not supported"]),
    (f"{KEY}embedding_scale", 53.0, ["embedding_scale", "is 53.0", "not supported"]),
    (f"{KEY}rope.scaling.type", "yarn", ["rope.scaling.type", "'yarn'", "not supported"]),
    (f"{KEY}expert_count", 8, ["expert_count", "is 8", "not supported"]),
    (f"{KEY}target_layers", None, ["target_layers", "missing or empty"]),
    (f"{KEY}target_layers", np.array([], "i4"), ["target_layers", "missing or empty"]),
    (f"{KEY}target_layers", np.array([1, 5], "i4"), ["target_layers", "says 5", "from 0 to 4", "of this model"]),
    (f"{KEY}target_layers", np.array([-1, 3], "i4"), ["target_layers", "says -1", "from 0 to 4"]),
    (f"{KEY}target_layers", np.array([1, 2, 3], "i4"), ["'fc.weight'", "(256, 512)", "(256, 768)"]),
    (f"{KEY}target_layers", 3, ["target_layers", "is an integer, expected an array of integers"]),
    (f"{KEY}embedding_length", 512, ["embedding_length", "says 512", "256, the model's"]),
    (f"{KEY}block_count", 3, ["'blk.2.attn_norm.weight'", "missing"]),
    (f"{KEY}block_count", 1, ["blk.1.", "not known"]),
    (f"{KEY}block_count", 2000, ["block_count", "at most 1024"]),
    (f"{KEY}block_size", 1, ["block_size", "is 1", "2 to 64"]),
    (f"{KEY}block_size", 2**31, ["block_size", "2 to 64"]),
    (f"{KEY}block_size", None, ["block_size", "missing"]),
    (f"{KEY}attention.head_count_kv", 3, ["head_count_kv", "is 3", "a divisor of the 4 heads"]),
    (f"{KEY}attention.key_length", 24, ["key_length", "is 24", "a multiple of 16"]),
    (f"{KEY}attention.value_length", 32, ["value_length", "is 32", "64, the key length"]),
    (f"{KEY}rope.dimension_count", 65, ["rope.dimension_count", "is 65", "an even number"]),
    (f"{KEY}rope.dimension_sections", np.array([11, 11, 10, 0], "i4"), ["dimension_sections", "the time axis alone"]),
    (f"{KEY}attention.layer_norm_rms_epsilon", float("nan"), ["layer_norm_rms_epsilon", "nan"]),
    (f"{KEY}attention.sliding_window_pattern", np.array([True]), ["sliding_window_pattern", "has 1 entries", "2"]),
    (f"{KEY}attention.causal", 1, ["attention.causal", "is an integer, expected a boolean"]),
    (f"{KEY}selector_top_k", 257, ["selector_top_k", "is 257", "at most 256"]),
    (f"{KEY}selector_rank", 16, ["'selector_predecessor.weight'", "(512, 32)", "(512, 16)"]),
    (f"{KEY}conv_kernel_size", 17, ["conv_kernel_size", "is 17", "at most 16"]),
    (f"{KEY}conv_kernel_size", 2, ["attn_conv_", "expected"]),
    (f"{KEY}conv_group_size", 48, ["conv_group_size", "is 48", "a divisor of the width 256"]),
    (f"{KEY}final_logit_softcapping", -1.0, ["final_logit_softcapping", "is -1.0", "positive"]),
    ("tokenizer.ggml.mask_token_id", 512, ["mask_token_id", "is 512", "512 tokens", "of this model"]),
    ("tokenizer.ggml.mask_token_id", None, ["mask_token_id", "missing"]),
    ("tokenizer.ggml.tokens", ["a", "b"], ["tokenizer.ggml.tokens", "has 2 entries", "512", "of this model"]),
]
NORM = Entry((256,), bytes(1024))
BAD_TENSORS: list[tuple[str, Entry | None, list[str]]] = [
    ("fc.weight", None, ["'fc.weight'", "(256, 512)", "missing"]),
    ("blk.0.attn_q.weight", Entry((256, 512), bytes(4 * 256 * 512)), ["'blk.0.attn_q.weight'", "(512, 256)"]),
    ("blk.0.attn_sinks.weight", Entry((4,), bytes(16)), ["'blk.0.attn_sinks.weight'", "attention with sinks"]),
    ("blk.1.post_attention_norm.weight", NORM, ["post_attention_norm", "a norm behind attention"]),
    ("blk.1.post_ffw_norm.weight", NORM, ["post_ffw_norm", "a norm behind the feed-forward layer"]),
    ("blk.1.attn_q.bias", Entry((256,), bytes(1024)), ["'blk.1.attn_q.bias'", "may change its results"]),
    ("selector_hidden.weight", None, ["'selector_hidden.weight'", "(32, 256)", "missing"]),
    ("d2t", Entry((4,), bytes(32), 27), ["'d2t'", "an output matrix of its own"]),
]


def changed(folder: Path, original: Path, pairs: dict[str, Any], tensors: dict[str, Entry | None]) -> Path:
    """A drafter with other values of keys and other tensors; None removes one."""
    all_pairs, all_tensors = contents(original)
    kept = {key: value for key, value in (all_pairs | pairs).items() if value is not None}
    entries = {name: entry for name, entry in (all_tensors | tensors).items() if entry is not None}
    (folder / "changed.gguf").write_bytes(gguf_bytes(kept, entries))
    return folder / "changed.gguf"


def refused(path: Path, target: Path, words: list[str]) -> None:
    with pytest.raises(TrigraphError) as caught:
        open_drafter(path, open_model(target).config)
    text = str(caught.value)
    assert str(path) in text and "\n" not in text
    for word in words:
        assert word in text, text


@pytest.mark.parametrize(("key", "value", "words"), BAD_KEYS, ids=lambda item: str(item)[:40])
def test_bad_keys(tmp_path: Path, synthetic: Any, drafters: Drafters, key: str, value: Any, words: list[str]) -> None:
    sliding: dict[str, Any] = {"window": 8, "sliding": (True, True)} if "attention." in key else {}
    original = drafters("dflash2", **sliding)
    refused(changed(tmp_path, original, {key: value}, {}), synthetic("tiny-dense", "F32"), words)


@pytest.mark.parametrize(("name", "entry", "words"), BAD_TENSORS, ids=lambda item: str(item)[:40])
def test_bad_tensors(
    tmp_path: Path, synthetic: Any, drafters: Drafters, name: str, entry: Entry | None, words: list[str]
) -> None:
    refused(changed(tmp_path, drafters("dflash2"), {}, {name: entry}), synthetic("tiny-dense", "F32"), words)


@pytest.mark.parametrize(
    ("rows", "kind", "words"),
    [
        ([0, 512], 27, ["'d2t'", "names token 512", "has 512"]),
        ([-1, 3], 27, ["'d2t'", "names token -1"]),
        ([1.0, 3.0], 0, ["'d2t'", "type F32", "expected I64"]),
        ([3], 27, ["'markov_w2.weight'", "(512, 32)", "(1, 32)"]),
    ],
)
def test_bad_maps(
    tmp_path: Path, synthetic: Any, drafters: Drafters, rows: list[Any], kind: int, words: list[str]
) -> None:
    original, dtype = drafters("dspark", own=("output.weight",)), "<i8" if kind else "<f4"
    tensors: dict[str, Entry | None] = {"d2t": Entry((len(rows),), np.array(rows, dtype).tobytes(), kind)}
    if len(rows) == 2:
        tensors |= {"output.weight": Entry((256, 2), bytes(2048)), "markov_w2.weight": Entry((32, 2), bytes(256))}
    refused(changed(tmp_path, original, {}, tensors), synthetic("tiny-dense", "F32"), words)


def test_streams_have_none(tmp_path: Path, drafters: Drafters) -> None:
    write_synthetic("tiny-streams", tmp_path / "streams.gguf", quant="Q8_0")
    refused(drafters("dflash"), tmp_path / "streams.gguf", ["residual streams", "qwen4exp", "leave it out"])


def test_other_vocabulary(tmp_path: Path, drafters: Drafters) -> None:
    write_synthetic("tiny-dense", tmp_path / "model.gguf", vocab=600, quant="Q8_0")
    refused(drafters("dflash"), tmp_path / "model.gguf", ["has 512 entries", "the model 600"])


@pytest.mark.parametrize("kind", KINDS)
def test_truncated(tmp_path: Path, synthetic: Any, drafters: Drafters, kind: str) -> None:
    """At any place; a cut in the tensor data is seen in the header's sizes."""
    whole, config = drafters(kind).read_bytes(), open_model(synthetic("tiny-dense", "F32")).config
    path = tmp_path / "cut.gguf"
    for length in (0, 3, 4, 20, 100, 1000, len(whole) // 2, len(whole) - 40):
        path.write_bytes(whole[:length])
        with pytest.raises(TrigraphError, match=r"cut\.gguf"):
            open_drafter(path, config)


def test_what_files_of_dflash_leave_out(tmp_path: Path, drafters: Drafters) -> None:
    """Their sliding layers are causal; where the file says, its word counts."""
    sliding = drafters("dflash", window=70, sliding=(True, False))
    assert open_drafter(sliding).config.causal == (False, False)
    unsaid = {f"{KEY}attention.causal": None}
    assert open_drafter(changed(tmp_path, sliding, unsaid, {})).config.causal == (True, False)
    paired = drafters("dflash2", window=70, sliding=(True, False))
    assert open_drafter(changed(tmp_path, paired, unsaid, {})).config.causal == (False, False)


def test_optional_keys(tmp_path: Path, drafters: Drafters) -> None:
    keys = ("rope.dimension_count", "rope.dimension_sections", "attention.value_length", "attention.causal")
    file = drafters("dspark")
    without = changed(tmp_path, file, {f"{KEY}{key}": None for key in (*keys, "sample_from_anchor")}, {})
    assert open_drafter(without).config == open_drafter(file).config
    named = changed(tmp_path, file, {"general.name": None}, {})
    assert open_drafter(named).config == replace(open_drafter(file).config, name="changed")


@pytest.mark.slow
def test_commands(tmp_path: Path, synthetic: Any, drafters: Drafters, trigraph: Run) -> None:
    model, file = synthetic("tiny-dense", "F32"), drafters("dspark")
    refusals = {
        ("export", file, "-o", tmp_path / "a"): "holds a block drafter (DFlash) alone; give the file of the text model",
        ("run", file, "-p", "a"): "give the file of the text model, and this one as its draft_model",
        ("export", model, "-o", tmp_path / "a", "-md", model): "expected 'dflash'; give the file of a block drafter",
        ("export", model, "-o", tmp_path / "a", "-md", file, "--portable"): "draft_model names a block drafter",
        ("export", model, "-o", tmp_path / "a", "-md", file, "--draft-vocab", 20): "expected 32 to 512",
        ("inspect", model, "-md", model): "expected 'dflash'",
        ("inspect", file, "-md", file): "is a block drafter; --draft-model is for its model, leave it out",
        ("inspect", file, "--graph", tmp_path / "b.svg"): "--graph is for its model",
    }
    for arguments, words in refusals.items():
        result = trigraph(*arguments)
        assert result.status == 2 and words in result.err, result.err
    assert not (tmp_path / "a").exists()
    shown = trigraph("inspect", file).out
    assert "DSpark, up to 8 tokens at once" in shown and "layers 1, 3 of the model" in shown
    assert '"kind": "dspark"' in trigraph("inspect", file, "--json").out
    trigraph("export", model, "-o", tmp_path / "package", "--draft-model", file)
    for arguments in ((model, "-md", file), (tmp_path / "package",)):
        assert "DSpark, up to 8 tokens" in trigraph("inspect", *arguments).out
    assert '"kind": "dspark"' in trigraph("inspect", tmp_path / "package", "--json").out
    assert trigraph("inspect", tmp_path / "package", "-md", file).status == 2
    trigraph("inspect", tmp_path / "package", "--graph", tmp_path / "a.svg")
    assert "a block drafter" in (tmp_path / "a.svg").read_text()
