"""A checked model: its configuration, and every tensor it needs with the shape that follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from trigraph.models.config import ModelConfig, read_config
from trigraph.models.errors import TrigraphError, quote
from trigraph.models.gguf_file import GGUFFile, Tensor
from trigraph.models.names import (
    ATTN_NORM,
    HC_ATTN,
    NEXTN_SHARED_HEAD_NORM,
    OUTPUT_MIXER,
    PLE_CONV1D,
    SSM_CONV1D,
    in_block,
    mixer,
    role,
    scale,
)
from trigraph.models.ollama import translated
from trigraph.models.shapes import Shapes, mtp_shapes, trunk_shapes
from trigraph.models.tensor_types import dequantize

# What a separate MTP file must have in common with its trunk.
_SHARED_FIELDS = (
    "architecture", "trunk_layers", "hidden", "vocab", "heads", "kv_heads", "head_dim", "rope_dims", "rope_theta",
    "rms_eps", "experts", "experts_used", "expert_ffn", "shared_ffn", "normalize_experts", "ffn",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Model:
    """A model whose tensors are all present. Made by `open_model`."""

    config: ModelConfig
    file: GGUFFile
    mtp_file: GGUFFile | None
    """Where the MTP block is, if it is in a file of its own."""
    tensors: Mapping[str, Tensor]
    """Exactly the tensors in use, without dimensions of 1 that the architecture does not have."""

    @property
    def notices(self) -> tuple[str, ...]:
        """What a user should know of the files, one sentence each."""
        return self.file.notices + (self.mtp_file.notices if self.mtp_file is not None else ())

    def tensor(self, name: str) -> Tensor:
        """A tensor that the architecture always has; KeyError otherwise."""
        return self.tensors[name]

    def find(self, name: str) -> Tensor | None:
        """A tensor that a file may leave out."""
        return self.tensors.get(name)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, mapped from its file: uint8 [nbytes]."""
        return self._source(name).raw(name)

    def pieces(self, name: str) -> Iterable[npt.NDArray[np.uint8]]:
        """The bytes of a tensor in pieces of whole rows."""
        return self._source(name).pieces(name)

    def array(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor in float32, dequantised, times its factor if it has one."""
        values = self._source(name).array(name).reshape(self.tensors[name].shape)
        if scale(name) not in self.tensors:
            return values
        return values * self.array(scale(name)).reshape(-1, *(1,) * (values.ndim - 1))

    def rows(self, name: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Some rows of a matrix without a factor in float32 [*rows.shape, D]: no other part of the file is read."""
        tensor = self.tensors[name]
        raw = self.raw(name).reshape(-1, tensor.row_bytes)[rows.reshape(-1)]
        return dequantize(raw, tensor.type).reshape(*rows.shape, tensor.shape[-1])

    def _source(self, name: str) -> GGUFFile:
        if self.mtp_file is not None and self.tensors[name].file in self.mtp_file.paths:
            return self.mtp_file
        return self.file


def open_model(path: str | Path, mtp: str | Path | None = None) -> Model:
    """Open a GGUF file and check it. `mtp` is a file that holds the MTP block; it replaces one in `path`.

    Raises TrigraphError naming what is missing, has a wrong shape, or is not understood.
    """
    file = _open(path)
    config = read_config(file)
    mtp_file = None
    if mtp is not None:
        mtp_file = _open(mtp)
        _check_companion(config, read_config(mtp_file), file, mtp_file)
        config = replace(config, mtp_layers=1)
    head = in_block(config.trunk_layers, "")
    in_trunk_file = any(name.startswith(head) for name in file.tensors)
    first = ATTN_NORM if config.streams is None else mixer(HC_ATTN)[0]
    if in_trunk_file and in_block(0, first) not in file.tensors:
        raise TrigraphError(
            f"{file.paths[0]}: holds only the MTP head; give the model's own file, and this one as its mtp"
        )
    if mtp_file is None and not in_trunk_file:  # a trunk whose metadata still mentions the head
        config = replace(config, mtp_layers=0)

    tensors = _check_tensors(file, "", trunk_shapes(config, file.tensors), others=(head,))
    if config.mtp_layers:
        source = mtp_file or file
        _check_head(config, source, head, alone=mtp_file is not None)
        tensors |= _check_tensors(source, head, mtp_shapes(config, source.tensors))
    return Model(config, file, mtp_file, MappingProxyType(tensors))


def companion(path: str | Path) -> Path | None:
    """The MTP file that belongs to a model without a head: the first `mtp-*.gguf` beside it that is one of its own."""
    heads = sorted(Path(path).parent.glob("mtp-*.gguf"))
    if not heads:  # which costs no look into the model
        return None
    file = _open(path)
    config = read_config(file)
    if any(name.startswith(in_block(config.trunk_layers, "")) for name in file.tensors):
        return None
    for candidate in heads:
        with suppress(TrigraphError):
            head = _open(candidate)
            _check_companion(config, read_config(head), file, head)
            return candidate
    return None


def _open(path: str | Path) -> GGUFFile:
    return translated(GGUFFile.open(path))


def _check_tensors(file: GGUFFile, prefix: str, shapes: Shapes, others: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """The tensors named in `shapes`, checked.

    Unknown ones whose names start with `prefix` are refused, since leaving one out would change results silently;
    `others` are the prefixes of those that are checked elsewhere or not in use.
    """
    path = file.paths[0]
    checked: dict[str, Tensor] = {}
    matrices = {
        name: shape for name, shape in shapes.items() if len(shape) > 1 and role(name) not in (SSM_CONV1D, PLE_CONV1D)
    }
    factors = {scale(name): shape[:-2] or (1,) for name, shape in matrices.items()}
    shapes = shapes | {name: shape for name, shape in factors.items() if name in file.tensors}
    for name, shape in shapes.items():
        if (tensor := file.tensors.get(name)) is None:
            raise _missing(file, name, shape)
        if [size for size in tensor.shape if size != 1] != [size for size in shape if size != 1]:
            raise TrigraphError(
                f"{path}: tensor {name!r} has shape {tensor.shape}, expected {shape} after the metadata; "
                "the file contradicts itself, convert the model again"
            )
        checked[name] = replace(tensor, shape=shape)
    for name in file.tensors:
        if name.removesuffix(".input_scale") + ".scale" in checked:  # for activations of four bits
            continue
        if name.startswith(prefix) and name not in checked and not name.startswith(others):
            raise TrigraphError(
                f"{path}: tensor {quote(name)} is not known in this architecture and may change its results; "
                "use a file without it"
            )
    return checked


def _check_head(config: ModelConfig, file: GGUFFile, head: str, alone: bool) -> None:
    """Refuse MTP heads of residual streams whose last mixer is not named as llama.cpp's converter does."""
    foreign = [head + NEXTN_SHARED_HEAD_NORM, *(OUTPUT_MIXER if alone else ())]
    if config.streams is not None and (unexpected := next((name for name in foreign if name in file.tensors), None)):
        raise TrigraphError(
            f"{file.paths[0]}: tensor {unexpected!r} is of a variant of the MTP head that llama.cpp's converter does "
            "not write; use a file that it made"
        )


def _missing(file: GGUFFile, name: str, shape: tuple[int, ...]) -> TrigraphError:
    path, legacy = file.paths[0], name.replace("attn_qkv", "ssm_in")
    if legacy != name and legacy in file.tensors:
        return TrigraphError(
            f"{path}: tensor {legacy!r} belongs to the layout of early qwen3next files, q, k, v and z in one matrix; "
            "convert the model again with a current llama.cpp, or download a newer file"
        )
    return TrigraphError(
        f"{path}: tensor {name!r} with shape {shape} is missing; the file is incomplete, convert or download it again"
    )


def _check_companion(trunk: ModelConfig, head: ModelConfig, file: GGUFFile, mtp_file: GGUFFile) -> None:
    if not head.mtp_layers:
        raise TrigraphError(
            f"{mtp_file.paths[0]}: has no MTP head (nextn_predict_layers is 0); give a file that has one"
        )
    for name in _SHARED_FIELDS:
        ours, theirs = getattr(trunk, name), getattr(head, name)
        if ours != theirs:
            raise TrigraphError(
                f"{mtp_file.paths[0]}: {name} is {theirs}, but {ours} in {file.paths[0].name}; "
                "give the MTP file of the same model"
            )
