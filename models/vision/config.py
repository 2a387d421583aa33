"""Hyperparameters of a vision tower, from the metadata of an mmproj file."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trigraph.models.config import MAX_LAYERS
from trigraph.models.errors import TrigraphError, quote
from trigraph.models.gguf_file import GGUFFile
from trigraph.models.keys import Keys

ARCHITECTURE = "clip"
PROJECTOR = "qwen3vl_merger"
PATCH = 16
"""Pixels of a patch's side."""
MERGE = 2
"""Patches of a token's side."""
TOKEN = PATCH * MERGE
"""Pixels of a token's side."""
PATCH_INPUTS = 3 * PATCH * PATCH
"""Numbers of a patch, in the order channel, row, column."""

POSITION_TABLE = "v.position_embd.weight"

# Keys that change the mathematics in a way that is not implemented, with the value that does not.
_FIXED: dict[str, int] = {"patch_size": PATCH, "spatial_merge_size": MERGE}


@dataclass(frozen=True)
class VisionConfig:
    """Geometry and constants. Widths count elements."""

    name: str
    layers: int
    width: int
    heads: int
    ffn: int
    hidden: int
    """Width of the text model's embeddings."""
    table_side: int
    """Rows and columns of the table of positions, which is stretched over an image's patches."""
    eps: float
    mean: tuple[float, ...]
    """The mean of red, green and blue, from 0 to 1."""
    std: tuple[float, ...]
    min_pixels: int | None = None
    """Least area of a resized image, where the file states one."""
    max_pixels: int | None = None

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


def read_vision_config(file: GGUFFile) -> VisionConfig:
    """The configuration in an mmproj file's metadata.

    Raises TrigraphError, naming key and value, for a missing or wrong-typed key, another kind of tower, and values that
    contradict each other or ask for something that is not implemented.
    """
    general, clip, keys = Keys(file, "general."), Keys(file, "clip."), Keys(file, "clip.vision.")
    architecture = general.get("architecture", "a string", (str,), None)
    if architecture != ARCHITECTURE:
        raise general.error("architecture", f"is {quote(architecture)}, expected '{ARCHITECTURE}'; give an mmproj file")
    _check_kind(clip, keys)
    config = VisionConfig(
        name=general.get("name", "a string", (str,), file.paths[0].stem),
        layers=keys.integer("block_count"),
        width=keys.integer("embedding_length"),
        heads=keys.integer("attention.head_count"),
        ffn=keys.integer("feed_forward_length"),
        hidden=keys.integer("projection_dim"),
        table_side=_table_side(file),
        eps=keys.positive("attention.layer_norm_epsilon"),
        mean=_colours(keys, "image_mean"),
        std=_colours(keys, "image_std"),
        min_pixels=_optional(keys, "image_min_pixels"),
        max_pixels=_optional(keys, "image_max_pixels"),
    )
    _check_consistency(config, keys)
    return config


def _check_kind(clip: Keys, keys: Keys) -> None:
    projector = clip.get("projector_type", "a string", (str,), None)
    if projector != PROJECTOR:
        raise clip.error(
            "projector_type",
            f"is {quote(projector)}, supported is '{PROJECTOR}'; give the mmproj file of a Qwen3.5, 3.6 or 3.8 model",
        )
    for key in ("has_vision_encoder", "use_gelu"):
        if not clip.boolean(key, True):
            raise clip.error(key, "is false, which is not supported; give the mmproj file of a Qwen3.5 model")
    for key, value in _FIXED.items():
        if (given := keys.integer(key, value)) != value:
            raise keys.error(key, f"is {given}, supported is {value}; give the mmproj file of a Qwen3.5 model")
    deepstack = keys.array("is_deepstack_layers", "b", "an array of booleans")
    if deepstack is not None and deepstack.any():
        raise keys.error(
            "is_deepstack_layers",
            f"names {int(deepstack.sum())} layers, and towers whose layers reach into the text model (deepstack, as in "
            "Qwen3-VL) are not supported; give the mmproj file of a Qwen3.5, 3.6 or 3.8 model",
        )


def _table_side(file: GGUFFile) -> int:
    """From the table itself: files differ in what `image_size` means."""
    table = file.tensors.get(POSITION_TABLE)
    if table is None:
        raise TrigraphError(
            f"{file.paths[0]}: tensor '{POSITION_TABLE}' is missing; the file is incomplete, convert or download it "
            "again"
        )
    side = math.isqrt(table.shape[0])
    if side * side != table.shape[0]:
        raise TrigraphError(
            f"{file.paths[0]}: tensor '{POSITION_TABLE}' has {table.shape[0]} rows, expected a square number; "
            "convert the model again"
        )
    return side


def _colours(keys: Keys, key: str) -> tuple[float, ...]:
    colours = keys.array(key, "f", "an array of three floats")
    if colours is None:
        return (0.5, 0.5, 0.5)
    least = 0 if key.endswith("mean") else 2.0**-10  # what is divided by
    if len(colours) != 3 or not (np.isfinite(colours) & (colours >= least) & (colours <= 1)).all():
        raise keys.error(key, f"is {quote(colours.tolist())}, expected three numbers up to 1; convert the model again")
    return tuple(map(float, colours))


def _optional(keys: Keys, key: str) -> int | None:
    return keys.integer(key) if keys.prefix + key in keys.metadata else None


def _check_consistency(config: VisionConfig, keys: Keys) -> None:
    if config.layers > MAX_LAYERS:
        raise keys.error(
            "block_count", f"is {config.layers}, expected at most {MAX_LAYERS}; the file is damaged, download it again"
        )
    if config.width % (4 * config.heads):
        raise keys.error(
            "attention.head_count",
            f"is {config.heads}, expected heads of a multiple of 4 in a width of {config.width}; "
            "convert the model again",
        )
    least, most = config.min_pixels, config.max_pixels
    if least is not None and most is not None and least > most:
        raise keys.error("image_min_pixels", f"is {least}, more than image_max_pixels, {most}; convert the model again")
