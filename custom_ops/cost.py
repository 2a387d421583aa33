"""What an operator must move and multiply: the terms of a roofline. Each family counts its own in `operators.py`.

Values between operators are not counted, as they stay in the caches; nor are norms, rotations and other work that grows
with a row alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from trigraph.models.tensor_types import FLOAT_TYPES


@dataclass(frozen=True)
class Cost:
    """Bytes that must be read or written at least once, and products by the kind of multiplication."""

    bytes: float = 0
    float32_products: float = 0
    int8_products: float = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.bytes + other.bytes,
            self.float32_products + other.float32_products,
            self.int8_products + other.int8_products,
        )


@dataclass(frozen=True)
class Workload:
    """What one run of a graph computes."""

    tokens: int
    """Tokens of all sequences together."""
    sequences: int
    context: int
    """Positions that attention sees in each sequence."""
    experts: Mapping[str, float] = field(default_factory=dict)
    """Distinct experts that the tokens choose, by the name of the expert node."""


@dataclass(frozen=True)
class Tensor:
    """A weight, state tensor or value of a graph: what is known of it without reading it."""

    name: str
    dims: tuple[int | str, ...]
    """Static dimensions, and names of those that a host chooses: T for tokens, S for sequences."""
    element_bytes: int

    @property
    def item_elements(self) -> int:
        """Elements of one index of the first dimension."""
        return math.prod(int(dim) for dim in self.dims[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of a weight. Raises ValueError for a tensor with named dimensions."""
        return int(self.dims[0]) * self.item_elements * self.element_bytes

    def rows(self, work: Workload) -> int:
        """Rows of a value in a run: one a token, or one a sequence."""
        return work.tokens if self.dims[0] == "T" else work.sequences


@dataclass(frozen=True)
class Node:
    """A node of a graph with its tensors; None stands for an optional input that is not given."""

    name: str
    inputs: Sequence[Tensor | None]
    outputs: Sequence[Tensor]
    attributes: Mapping[str, Any]

    def given(self, index: int) -> Tensor:
        """A required input. Raises ValueError without it."""
        tensor = self.inputs[index] if index < len(self.inputs) else None
        if tensor is None:
            raise ValueError(f"node {self.name}: input {index} is missing")
        return tensor


def products(weight: Tensor, rows: float, type: str, activations: str) -> Cost:
    """Multiplying `rows` rows by every row of a weight of a ggml type; reading the weight is not counted."""
    elements, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[type]]
    count = rows * weight.nbytes / block_bytes * elements
    if activations == "int8" and type not in FLOAT_TYPES:
        return Cost(int8_products=count)
    return Cost(float32_products=count)
