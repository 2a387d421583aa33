"""Vision towers in the files that Ollama has written of these models, as llama.cpp's converter would have written them.

Queries, keys and values have matrices of their own there, and the patch's weights of two frames are one tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from trigraph.models.errors import TrigraphError
from trigraph.models.gguf_file import GGUFFile, Pieces, Tensor
from trigraph.models.vision import shapes
from trigraph.models.vision.config import ARCHITECTURE, PATCH, PROJECTOR

_PATCH = "v.patch_embed.weight"
_NAMES = (
    (re.compile(r"v\.patch_embed\.bias"), shapes.PATCH_BIAS),
    (re.compile(r"v\.pos_embed\."), "v.position_embd."),
    (re.compile(r"v\.merger\.norm\."), f"{shapes.MERGER_NORM}."),
    (re.compile(r"v\.merger\.linear_fc1\."), f"{shapes.MERGER_IN}."),
    (re.compile(r"v\.merger\.linear_fc2\."), f"{shapes.MERGER_OUT}."),
    (re.compile(r"(v\.blk\.\d+\.)norm1\."), rf"\1{shapes.LN1}."),
    (re.compile(r"(v\.blk\.\d+\.)norm2\."), rf"\1{shapes.LN2}."),
    (re.compile(r"(v\.blk\.\d+\.)mlp\.linear_fc1\."), rf"\1{shapes.FFN_UP}."),
    (re.compile(r"(v\.blk\.\d+\.)mlp\.linear_fc2\."), rf"\1{shapes.FFN_DOWN}."),
)
# By the key of an mmproj file, that of the text model.
_KEYS = {
    "block_count": "vision.block_count",
    "embedding_length": "vision.embedding_length",
    "feed_forward_length": "vision.feed_forward_length",
    "attention.head_count": "vision.attention.head_count",
    "attention.layer_norm_epsilon": "vision.attention.layer_norm_epsilon",
    "patch_size": "vision.patch_size",
    "spatial_merge_size": "vision.spatial_merge_size",
    "image_mean": "vision.image_mean",
    "image_std": "vision.image_std",
    "image_min_pixels": "vision.shortest_edge",
    "image_max_pixels": "vision.longest_edge",
    "projection_dim": "embedding_length",
}


def tower_file(file: GGUFFile) -> GGUFFile:
    """The tower in a text model's file as a file of its own; a file without one as it is.

    Raises TrigraphError for a tower that works in another way than those of published models.
    """
    if not file.others or f"{file.metadata['general.architecture']}.vision.block_count" not in file.metadata:
        return file
    tensors, made = dict[str, Tensor](), dict[str, Pieces]()
    for name, tensor in file.others.items():
        if name == _PATCH and tensor.shape[1:] == (2, PATCH, PATCH) and tensor.shape[0] % 3 == 0:
            for frame, slice_name in enumerate(shapes.PATCH_WEIGHTS):
                shape = (tensor.shape[0] // 3, 3, PATCH, PATCH)
                tensors[slice_name] = replace(
                    tensor, name=slice_name, shape=shape, offset=None, nbytes=tensor.nbytes // 2
                )
                made[slice_name] = partial(_frame, file, tensor, frame)
            continue
        renamed = _renamed(name)
        tensors[renamed] = replace(tensor, name=renamed)
    return replace(
        file,
        metadata=MappingProxyType(_metadata(file, tensors)),
        tensors=MappingProxyType(tensors),
        others=MappingProxyType({}),
        made=made,
        notices=(),
    )


def _renamed(name: str) -> str:
    for pattern, ours in _NAMES:
        name = pattern.sub(ours, name)
    return name


def _frame(file: GGUFFile, tensor: Tensor, frame: int) -> Iterator[npt.NDArray[np.uint8]]:
    """The weights of one frame of the two in a tensor [width x channel, frame, row, column]."""
    pairs = file.bytes_of(tensor).reshape(tensor.shape[0], 2, -1)
    yield np.ascontiguousarray(pairs[:, frame]).reshape(-1)


def _metadata(file: GGUFFile, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    architecture = file.metadata["general.architecture"]
    if file.metadata.get(key := f"{architecture}.rope.mrope_interleaved") is False:
        raise TrigraphError(f"{file.paths[0]}: key '{key}' is false, which is not supported for images")
    metadata = {
        f"clip.vision.{ours}": value
        for ours, theirs in _KEYS.items()
        if (value := file.metadata.get(f"{architecture}.{theirs}")) is not None
        and not (isinstance(value, np.ndarray) and not value.size)
    }
    metadata.setdefault("clip.vision.attention.layer_norm_epsilon", float(np.float32(1e-6)))
    up = tensors.get(f"{shapes.in_block(0, shapes.FFN_UP)}.weight")
    if up is not None:
        metadata.setdefault("clip.vision.feed_forward_length", math.prod(up.shape[:-1]))
    reaching = file.metadata.get(f"{architecture}.vision.deepstack_visual_indexes")
    if isinstance(reaching, np.ndarray) and reaching.size:
        metadata["clip.vision.is_deepstack_layers"] = np.ones(reaching.size, np.bool_)
    name = file.metadata.get("general.name")
    return {
        **({"general.name": name} if name is not None else {}),
        "general.architecture": ARCHITECTURE,
        "clip.projector_type": PROJECTOR,
        **metadata,
    }
