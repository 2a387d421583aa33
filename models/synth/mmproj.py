"""Synthetic mmproj files: vision towers with random weights in the shapes and types of published ones."""

from __future__ import annotations

from pathlib import Path

import gguf

from trigraph.models.errors import TrigraphError
from trigraph.models.synth.layout import FILE_TYPES, SynthTensor
from trigraph.models.synth.types import fitting_type
from trigraph.models.synth.write import Progress, write_file
from trigraph.models.vision.config import ARCHITECTURE, MERGE, PATCH, PATCH_INPUTS, POSITION_TABLE, PROJECTOR
from trigraph.models.vision.geometries import VisionGeometry, vision_geometry
from trigraph.models.vision.shapes import PATCH_WEIGHTS, tower_shapes

TOWER_QUANTS = ("F16", "BF16", "F32", "Q8_0")


def write_synthetic_mmproj(
    geometry: str,
    path: Path,
    *,
    layers: int | None = None,
    quant: str = "F16",
    seed: int = 0,
    progress: Progress | None = None,
) -> None:
    """Write a random vision tower with the named geometry, deterministic by `seed`; `layers` cuts it down.

    The file appears when it is complete. Raises TrigraphError for bad arguments and a path that cannot be written.
    """
    if quant not in TOWER_QUANTS:
        raise TrigraphError(f"unknown quant {quant!r}; those of mmproj files are {', '.join(TOWER_QUANTS)}")
    shape = vision_geometry(geometry, layers)
    write_file(
        path,
        ARCHITECTURE,
        lambda writer: _add_metadata(writer, shape, f"synthetic-{geometry}", quant),
        tower_tensors(shape, quant),
        seed,
        progress,
    )


def tower_tensors(geometry: VisionGeometry, quant: str) -> list[SynthTensor]:
    """Every tensor of the file, in file order."""
    return [_tensor(name, shape, quant) for name, shape in tower_shapes(geometry).items()]


def _tensor(name: str, shape: tuple[int, ...], quant: str) -> SynthTensor:
    if name in PATCH_WEIGHTS:
        return SynthTensor(name, shape, "F16" if quant == "F16" else "F32", rms=(2 * PATCH_INPUTS) ** -0.5)
    if name == POSITION_TABLE:
        return SynthTensor(name, shape, "F32", rms=0.5)
    if name.endswith(".bias"):
        return SynthTensor(name, shape, "F32", rms=0.1)
    if len(shape) == 1:
        return SynthTensor(name, shape, "F32", "norm")
    return SynthTensor(name, shape, fitting_type(quant, shape[-1]), rms=shape[-1] ** -0.5)


def _add_metadata(writer: gguf.GGUFWriter, g: VisionGeometry, name: str, quant: str) -> None:
    """Every key that a converted file of this geometry has."""
    writer.add_type("mmproj")
    writer.add_name(name)
    writer.add_file_type(FILE_TYPES[quant])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_string("clip.projector_type", PROJECTOR)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    for key, value in {
        "projection_dim": g.hidden,
        "image_size": g.table_side * PATCH,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "block_count": g.layers,
        "embedding_length": g.width,
        "feed_forward_length": g.ffn,
        "attention.head_count": g.heads,
    }.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)
    writer.add_array("clip.vision.is_deepstack_layers", [False] * g.layers)
