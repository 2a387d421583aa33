"""Synthetic block drafters: random weights in the shapes and types of published ones."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import gguf

from trigraph.models import names
from trigraph.models.architecture import ARCHITECTURES
from trigraph.models.drafter.config import ARCHITECTURE
from trigraph.models.drafter.geometries import DrafterGeometry, drafter_geometry
from trigraph.models.drafter.shapes import drafter_shapes
from trigraph.models.drafter.tensors import (
    CONFIDENCE,
    CONV_BASE,
    CONV_PROJ,
    MARKOV_W1,
    SELECTOR_PREDECESSOR,
    SELECTOR_SUCCESSOR,
)
from trigraph.models.errors import TrigraphError
from trigraph.models.synth.layout import FILE_TYPES, SynthTensor, add_tokenizer
from trigraph.models.synth.types import fitting_type
from trigraph.models.synth.vocabulary import make_vocabulary
from trigraph.models.synth.write import Progress, write_file

DRAFTER_QUANTS = {"Q8_0": "Q8_0", "Q4_K_M": "Q4_K", "BF16": "BF16", "F16": "F16", "F32": "F32"}
"""The type of matrices in each."""


def write_synthetic_drafter(
    geometry: str,
    path: Path,
    *,
    layers: int | None = None,
    vocab: int | None = None,
    quant: str = "Q8_0",
    seed: int = 0,
    hollow: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write a random block drafter with the named geometry, deterministic by `seed`.

    `layers` and `vocab` are those of a model that was cut down. `hollow`: matrices are holes in the file, which read
    as zeros and take no disk. The file appears when it is complete. Raises TrigraphError for bad arguments and a path
    that cannot be written.
    """
    shape = drafter_geometry(geometry, layers, vocab)
    write_drafter(shape, path, quant=quant, seed=seed, hollow=hollow, progress=progress)


def write_drafter(
    shape: DrafterGeometry,
    path: Path,
    *,
    own: Collection[str] = (),
    quant: str = "F32",
    seed: int = 0,
    hollow: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write one of any geometry; `own` names the optional tensors that it has."""
    if quant not in DRAFTER_QUANTS:
        raise TrigraphError(f"unknown quant {quant!r}; those of drafters are {', '.join(DRAFTER_QUANTS)}")
    write_file(
        path,
        ARCHITECTURE,
        lambda writer: _add_metadata(writer, shape, quant),
        [
            replace(tensor, kind="hollow") if hollow and tensor.kind == "weights" else tensor
            for tensor in drafter_tensors(shape, quant, own)
        ],
        seed,
        progress,
    )


def drafter_tensors(shape: DrafterGeometry, quant: str, own: Collection[str] = ()) -> list[SynthTensor]:
    """Every tensor of the file, in file order."""
    sizes = drafter_shapes(shape.config, shape.target.vocab, shape.target.vocab, own)
    return [_tensor(name, size, DRAFTER_QUANTS[quant]) for name, size in sizes.items()]


def _tensor(name: str, shape: tuple[int, ...], kind: str) -> SynthTensor:
    role = names.role(name)
    if role.endswith("norm.weight"):
        return SynthTensor(name, shape, "F32", "norm")
    if role in (*CONV_BASE.values(), *CONFIDENCE):
        return SynthTensor(name, shape, "F32", rms=0.5)
    if role in (SELECTOR_PREDECESSOR, SELECTOR_SUCCESSOR, MARKOV_W1, names.TOKEN_EMBD):
        return SynthTensor(name, shape, fitting_type(kind, shape[-1]), rms=1.0)
    size = {names.OUTPUT: 2.5, **dict.fromkeys(CONV_PROJ.values(), 0.3)}.get(role, 1.0)
    return SynthTensor(name, shape, fitting_type(kind, shape[-1]), rms=size * shape[-1] ** -0.5)


def _add_metadata(writer: gguf.GGUFWriter, shape: DrafterGeometry, quant: str) -> None:
    """Every key that a converted file of this geometry has, its model's tokenizer included."""
    c, target = shape.config, shape.target
    writer.add_type("model")
    writer.add_name(f"synthetic-{c.name}")
    writer.add_file_type(FILE_TYPES[quant])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(c.layers)
    writer.add_context_length(target.context_length)
    writer.add_embedding_length(c.hidden)
    writer.add_feed_forward_length(c.ffn)
    writer.add_head_count(c.heads)
    writer.add_head_count_kv(c.kv_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_layer_norm_rms_eps(c.rms_eps)
    writer.add_rope_freq_base(c.rope_theta)
    writer.add_rope_dimension_count(c.rope_dims)
    writer.add_rope_dimension_sections([c.rope_dims // 2, 0, 0, 0])
    writer.add_uint32(f"{ARCHITECTURE}.block_size", c.block)
    writer.add_array(f"{ARCHITECTURE}.target_layers", list(c.taps))
    if c.window:
        writer.add_sliding_window(c.window)
        writer.add_array(f"{ARCHITECTURE}.attention.sliding_window_pattern", list(c.sliding))
    if c.window or any(c.causal):
        writer.add_bool(f"{ARCHITECTURE}.attention.causal", any(c.causal))
    if c.kind == "dflash2":
        for key, value in {
            "conv_kernel_size": c.conv_kernel,
            "conv_group_size": c.conv_group,
            "selector_rank": c.rank,
            "selector_top_k": c.candidates,
        }.items():
            writer.add_uint32(f"{ARCHITECTURE}.{key}", value)
        if c.logit_cap:
            writer.add_float32(f"{ARCHITECTURE}.final_logit_softcapping", c.logit_cap)
        if c.logit_scale != 1:
            writer.add_float32(f"{ARCHITECTURE}.logit_scale", c.logit_scale)
    if c.kind == "dspark":
        writer.add_bool(f"{ARCHITECTURE}.sample_from_anchor", c.from_anchor)
        writer.add_bool(f"{ARCHITECTURE}.has_confidence_head", False)
    pre_tokenizer = ARCHITECTURES[target.architecture].pre_tokenizer
    add_tokenizer(writer, make_vocabulary(target.vocab, pre_tokenizer), pre_tokenizer)
    writer.add_mask_token_id(c.mask)
