"""What every operator states in Python, beside its NumPy reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trigraph.custom_ops.cost import Cost, Node, Workload

if TYPE_CHECKING:  # onnxscript takes long to import
    from trigraph.custom_ops.scripting import Function


@dataclass(frozen=True)
class Operator:
    """An operator of the domain `trigraph`."""

    name: str
    """Its ONNX operator type."""
    cost: Callable[[Node, Workload], Cost]
    """What a node costs in one run."""
    body: Callable[[Mapping[str, Any], int], Function | None] | None = None
    """The ONNX function body for a node's attributes and number of inputs. None where the library alone computes: for
    images, residual streams and blocks of keys and values."""
