"""A checked vision tower: its configuration, and every tensor it needs with the shape that follows from it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from trigraph.models.config import ModelConfig
from trigraph.models.errors import TrigraphError, quote
from trigraph.models.gguf_file import GGUFFile, Tensor
from trigraph.models.model import Model
from trigraph.models.ollama import translated
from trigraph.models.vision.config import PATCH_INPUTS, VisionConfig, read_vision_config
from trigraph.models.vision.ollama import tower_file
from trigraph.models.vision.shapes import PATCH_WEIGHTS, tower_shapes

PATTERN = "mmproj-*.gguf"


@dataclass(frozen=True, eq=False)
class Tower:
    """A tower whose tensors are all present. Made by `open_tower`."""

    config: VisionConfig
    file: GGUFFile
    tensors: Mapping[str, Tensor]
    """Exactly the tensors in use."""

    @property
    def parameters(self) -> int:
        """Weights of all tensors; the two slices of the patch's convolution count as two."""
        return sum(int(np.prod(tensor.shape)) for tensor in self.tensors.values())

    def tensor(self, name: str) -> Tensor:
        """A tensor; those of the patch as matrices [width, 768], as which they are used."""
        tensor = self.tensors[name]
        return replace(tensor, shape=(tensor.shape[0], PATCH_INPUTS)) if name in PATCH_WEIGHTS else tensor

    def array(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor in float32, dequantised."""
        return self.file.array(name)

    def pieces(self, name: str) -> Iterable[npt.NDArray[np.uint8]]:
        """The bytes of a tensor, whole rows at a time."""
        return self.file.pieces(name)

    def sha256(self) -> str:
        """SHA-256 of everything that embeddings depend on besides pixels: the configuration and the tensors' bytes.

        Reads the whole file.
        """
        digest = hashlib.sha256(repr(replace(self.config, name="")).encode())
        for name in sorted(self.tensors):
            tensor = self.tensors[name]
            digest.update(f"{name} {tensor.type} {tensor.shape}".encode())
            digest.update(self.file.raw(name).data)
        return digest.hexdigest()


def open_tower(path: str | Path, text: ModelConfig | None = None) -> Tower:
    """Open an mmproj file and check it, against the text model that it is for if that is given.

    Raises TrigraphError naming what is missing, has a wrong shape, or is not understood.
    """
    return _checked(translated(GGUFFile.open(path)), text)


def _checked(file: GGUFFile, text: ModelConfig | None) -> Tower:
    file, path = tower_file(file), file.paths[0]
    config = read_vision_config(file)
    if text is not None and (text.architecture == "qwen3next" or text.streams is not None):
        raise TrigraphError(
            f"{path}: models of architecture {text.architecture!r} read text alone; leave the mmproj file out"
        )
    if text is not None and config.hidden != text.hidden:
        raise TrigraphError(
            f"{path}: key 'clip.vision.projection_dim' is {config.hidden}, but the model's embedding_length is "
            f"{text.hidden}; give the mmproj file of the same model"
        )
    return Tower(config, file, MappingProxyType(_check_tensors(file, config)))


def possible_towers(model: str | Path) -> list[Path]:
    """The files beside a model's that may hold its tower, in the order in which they are tried."""
    return sorted(Path(model).parent.glob(PATTERN))


def find_tower(model: Model) -> tuple[Tower | None, tuple[str, ...]]:
    """The tower that belongs to a model, and where there is none why what might be one is not.

    It is the one in the model's file, or else the first `mmproj-*.gguf` beside it that can be opened and has its width.
    """
    reasons: list[str] = []
    for path in [*([None] if model.file.others else []), *possible_towers(model.file.paths[0])]:
        try:
            return _checked(model.file, model.config) if path is None else open_tower(path, model.config), ()
        except TrigraphError as error:
            reasons.append(str(error))
    return None, tuple(reasons)


def _check_tensors(file: GGUFFile, config: VisionConfig) -> dict[str, Tensor]:
    path, tensors = file.paths[0], dict[str, Tensor]()
    for name, shape in tower_shapes(config, file.tensors).items():
        if (tensor := file.tensors.get(name)) is None:
            raise TrigraphError(
                f"{path}: tensor {name!r} with shape {shape} is missing; the file is incomplete, convert or download "
                "it again"
            )
        if tensor.shape != shape:
            raise TrigraphError(
                f"{path}: tensor {name!r} has shape {tensor.shape}, expected {shape} after the metadata; "
                "the file contradicts itself, convert the model again"
            )
        tensors[name] = tensor
    if unknown := file.tensors.keys() - tensors:
        raise TrigraphError(
            f"{path}: tensor {quote(min(unknown))} is not known in this tower and may change its results; "
            "use a file without it"
        )
    return tensors
