"""A checked block drafter: its configuration, and every tensor it needs with the shape that follows from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from trigraph.models import names
from trigraph.models.config import ModelConfig
from trigraph.models.drafter.config import BlockDrafterConfig, check_target, read_drafter_config
from trigraph.models.drafter.shapes import drafter_shapes
from trigraph.models.drafter.tensors import CONFIDENCE, CONV_BASE, D2T
from trigraph.models.errors import TrigraphError, quote
from trigraph.models.gguf_file import GGUFFile, Tensor
from trigraph.models.keys import Keys

PREFIX = "drafter."
"""What precedes the names of a drafter's tensors in graphs: the model has tensors of the same names."""
# Tensors that only drafters of other models have, by the last part of a name, and what they are.
_FOREIGN = {
    "attn_sinks.weight": "attention with sinks",
    "attn_sinks": "attention with sinks",
    "post_attention_norm.weight": "a norm behind attention",
    "post_ffw_norm.weight": "a norm behind the feed-forward layer",
}


@dataclass(frozen=True, eq=False)
class BlockDrafter:
    """A drafter whose tensors are all present. Made by `open_drafter`."""

    config: BlockDrafterConfig
    file: GGUFFile
    tensors: Mapping[str, Tensor]
    """Exactly the tensors in use, under names that start with PREFIX."""
    tokens: npt.NDArray[np.int64] | None
    """The token of each row of the output matrix; None where row i is token i."""

    @property
    def parameters(self) -> int:
        """How many weights all tensors have."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    def tensor(self, name: str) -> Tensor:
        """A tensor; KeyError where there is none."""
        return self.tensors[name]

    def array(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor in float32, dequantised."""
        return self.file.array(name.removeprefix(PREFIX)).reshape(self.tensors[name].shape)

    def pieces(self, name: str) -> Iterable[npt.NDArray[np.uint8]]:
        """The bytes of a tensor, whole rows at a time."""
        return self.file.pieces(name.removeprefix(PREFIX))


def open_drafter(path: str | Path, target: ModelConfig | None = None) -> BlockDrafter:
    """Open a drafter's GGUF file and check it, against the model that it is for if that is given.

    Raises TrigraphError naming what is missing, has a wrong shape, or is not understood.
    """
    file = GGUFFile.open(path)
    config, vocab = read_drafter_config(file), _vocabulary(file, target)
    if target is not None:
        check_target(config, target, file.paths[0])
    if config.mask >= vocab:
        raise TrigraphError(
            f"{file.paths[0]}: key 'tokenizer.ggml.mask_token_id' is {config.mask}, and the model has {vocab} tokens; "
            "give the drafter of this model"
        )
    rows = _output_rows(file, vocab)
    if config.candidates > rows:
        config = replace(config, candidates=rows)
    tensors = _check_tensors(file, config, vocab, rows)
    return BlockDrafter(config, file, MappingProxyType(tensors), _tokens(file, vocab))


def _vocabulary(file: GGUFFile, target: ModelConfig | None) -> int:
    """How many tokens the model has."""
    tokens: list[str] | None = Keys(file, "tokenizer.ggml.").get(
        "tokens", "an array of strings", (list,), [] if target is not None else None
    )
    count = len(tokens or ())
    if target is not None and count not in (0, target.vocab):
        raise TrigraphError(
            f"{file.paths[0]}: key 'tokenizer.ggml.tokens' has {count} entries, and the model {target.vocab}; "
            "give the drafter of this model"
        )
    return count if target is None else target.vocab


def _output_rows(file: GGUFFile, vocab: int) -> int:
    """Rows of the output matrix: the model's tokens, or as many as a drafter's own has."""
    if D2T not in file.tensors:
        return vocab
    if names.OUTPUT not in file.tensors:
        raise TrigraphError(
            f"{file.paths[0]}: tensor '{D2T}' is for an output matrix of its own, which the file has not; "
            "convert the drafter again"
        )
    rows = math.prod(file.tensors[D2T].shape)
    if not 1 <= rows <= vocab:
        raise TrigraphError(
            f"{file.paths[0]}: tensor '{D2T}' has {rows} rows, expected 1 to {vocab}, the model's tokens; "
            "give the drafter of this model"
        )
    return rows


def _tokens(file: GGUFFile, vocab: int) -> npt.NDArray[np.int64] | None:
    if D2T not in file.tensors:
        return None
    if (kind := file.tensors[D2T].type) != "I64":
        raise TrigraphError(f"{file.paths[0]}: tensor '{D2T}' has type {kind}, expected I64; convert the drafter again")
    tokens = file.raw(D2T).view("<i8").astype(np.int64)
    if len(wrong := tokens[(tokens < 0) | (tokens >= vocab)]):
        raise TrigraphError(
            f"{file.paths[0]}: tensor '{D2T}' names token {wrong[0]}, and the model has {vocab}; "
            "give the drafter of this model"
        )
    return tokens


def _check_tensors(file: GGUFFile, config: BlockDrafterConfig, vocab: int, rows: int) -> dict[str, Tensor]:
    path, tensors = file.paths[0], dict[str, Tensor]()
    shapes = drafter_shapes(config, vocab, rows, file.tensors)
    for name, shape in shapes.items():
        if (tensor := file.tensors.get(name)) is None:
            raise TrigraphError(
                f"{path}: tensor {name!r} with shape {shape} is missing; the file is incomplete, convert or download "
                "it again"
            )
        if [size for size in tensor.shape if size != 1] != [size for size in shape if size != 1]:
            raise TrigraphError(
                f"{path}: tensor {name!r} has shape {tensor.shape}, expected {shape} after the metadata and the model; "
                "give the drafter of this model, or convert it again"
            )
        if name in (D2T, *CONFIDENCE):
            continue
        # Constants of the convolutions: those of the input, then those of the output.
        used = (2 * config.conv_kernel, config.hidden) if names.role(name) in CONV_BASE.values() else shape
        tensors[PREFIX + name] = replace(tensor, name=PREFIX + name, shape=used)
    if unknown := file.tensors.keys() - shapes.keys():
        name = min(unknown)
        what = _FOREIGN.get(names.role(name), "which is not known in a drafter and may change its results")
        raise TrigraphError(f"{path}: tensor {quote(name)}: {what}; use a drafter of a Qwen model, without it")
    return tensors
