"""Typed access to the metadata of a GGUF file."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from trigraph.models.errors import TrigraphError, quote
from trigraph.models.gguf_file import GGUFFile

MAX_SIZE = 1 << 31  # of any dimension, and of a context


class Keys:
    """Typed access to the metadata of one file, under the architecture's prefix."""

    def __init__(self, file: GGUFFile, prefix: str) -> None:
        self.path, self.metadata, self.prefix = file.paths[0], file.metadata, prefix

    def error(self, key: str, text: str) -> TrigraphError:
        return TrigraphError(f"{self.path}: key '{self.prefix}{key}' {text}")

    def has(self, key: str) -> bool:
        """Whether the file states the key."""
        return self.prefix + key in self.metadata

    def get(self, key: str, expected: str, types: tuple[type, ...], default: Any) -> Any:
        value = self.metadata.get(self.prefix + key, default)
        if value is None:
            raise self.error(key, "is missing; convert the model again with a current converter")
        if type(value) not in types:
            raise self.error(key, f"is {describe_type(value)}, expected {expected}; convert the model again")
        return value

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        value: int = self.get(key, "an integer", (int,), default)
        if value < least:
            raise self.error(key, f"is {value}, expected at least {least}; convert the model again")
        if value > MAX_SIZE:
            raise self.error(key, f"is {value}, expected at most {MAX_SIZE}; convert the model again")
        return value

    def uniform(self, key: str) -> int:
        """An integer, or an array with one for each layer: the only one in it that is not 0."""
        if (listed := self.listed(key)) is None:
            return self.integer(key)
        values = np.unique(listed[listed != 0])
        if len(values) != 1 or not 0 < values[0] <= MAX_SIZE:
            raise self.error(
                key,
                f"is {quote(listed.tolist())}, and layers that differ in it are not supported; use a model whose "
                "layers are alike",
            )
        return int(values[0])

    def listed(self, key: str) -> npt.NDArray[Any] | None:
        """The array of integers that is in the place of one integer, where there is one."""
        value = self.metadata.get(self.prefix + key)
        return value if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size else None

    def positive(self, key: str, default: float | None = None) -> float:
        value: float = self.get(key, "a number", (float, int), default)
        if not (math.isfinite(value) and value > 0):
            raise self.error(key, f"is {value}, expected a positive number; convert the model again")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value: bool = self.get(key, "a boolean", (bool,), default)
        return value

    def array(self, key: str, kind: str, expected: str) -> npt.NDArray[Any] | None:
        """An array whose dtype is of NumPy's `kind` ("b", "f", "iu"), None where the key is missing."""
        value = self.metadata.get(self.prefix + key)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kind:
            raise self.error(key, f"is {describe_type(value)}, expected {expected}; convert the model again")
        return value


def describe_type(value: object) -> str:
    """What a metadata value is, in the words of the GGUF format."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype.name}"
    if isinstance(value, list):
        return "an array of strings"
    return {bool: "a boolean", int: "an integer", float: "a float", str: "a string"}[type(value)]
