"""Operators with random shapes, types and indices: a result, or an ONNX Runtime error that names the operator.

Meant for a library built with AddressSanitizer and UBSan (`make sanitize`), which end the process at a wrong access.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.calls import CALLS
from fuzz.damage import number
from fuzz.draw import TYPES, Array, Call
from support.operators.run import Operator
from trigraph.custom_ops import instruction_sets


class Fuzzer:
    """See fuzz.target.Target."""

    def __init__(self, folder: Path) -> None:
        self._instruction_sets = instruction_sets()

    def run(self, seed: int, case: int) -> str:
        """Run an operator on valid or damaged input."""
        rng = random.Random(f"{seed}:{case}")
        os.environ["TRIGRAPH_ISA"] = rng.choice(self._instruction_sets)
        call = rng.choice(list(CALLS.values()))(rng)
        damaged = rng.random() < 0.7
        if damaged:
            for _ in range(rng.choice((1, 1, 2))):
                _damage(rng, call)
        try:
            operator = Operator(
                call.op, call.inputs, call.output_types, call.attributes, threads=rng.choice((1, 2)), alias=call.alias
            )
        except Exception:  # ONNX Runtime's own checks of types, ranks and attributes, and ours of attributes
            if damaged:
                return "unbuildable"
            raise
        try:
            operator(*call.inputs, output_shapes=None if damaged and not call.alias else call.output_shapes)
        except Exception as error:
            if damaged and (f"trigraph.{call.op}: " in str(error) or _is_of_onnxruntime(error)):
                return "refused"
            raise
        return "ran"


def _is_of_onnxruntime(error: Exception) -> bool:
    """Whether a binding was refused before the operator saw it."""
    return any(text in str(error) for text in ("Invalid rank", "Got invalid dimensions", "Unexpected input data type"))


def _damage(rng: random.Random, call: Call) -> None:
    if rng.random() < 0.15:
        _damage_attribute(rng, call.attributes)
        return
    at = rng.randrange(len(call.inputs))
    array = call.inputs[at]
    if array is None:
        return
    if array.dtype.kind == "i" and array.size and rng.random() < 0.7:
        array = array.copy()
        bits = 8 * array.itemsize
        for _ in range(rng.choice((1, 1, 3))):
            value = rng.choice((number(rng, bits), rng.randint(-2, 12), int(array.max()) + 1))
            array.flat[rng.randrange(array.size)] = (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
    else:
        array = _reshaped(rng, array)
    if at not in call.alias.values() or array.shape == call.inputs[at].shape:  # type: ignore[union-attr]
        call.inputs[at] = np.ascontiguousarray(array)


def _reshaped(rng: random.Random, array: Array) -> Array:
    axis = rng.randrange(array.ndim) if array.ndim else 0
    match rng.randrange(8):
        case 0 if array.ndim:
            return np.take(array, range(rng.randrange(array.shape[axis] + 1)), axis)
        case 1 if array.ndim:
            return np.concatenate([array, array], axis)
        case 2:
            return array.reshape(-1)
        case 3:
            return array.reshape(*array.shape, *[1] * rng.choice((1, 2, 6)))
        case 4:
            return array.T
        case 5:
            return array.astype(rng.choice((np.float32, np.float16, np.int32, np.int64, np.uint8)))
        case 6 if array.ndim and array.shape[axis]:
            return np.delete(array, rng.randrange(array.shape[axis]), axis)
        case _:
            return np.zeros([rng.choice((0, 1, size, size + 1)) for size in array.shape], array.dtype)


def _damage_attribute(rng: random.Random, attributes: dict[str, Any]) -> None:
    if not attributes:
        return
    name = rng.choice(list(attributes))
    value = attributes[name]
    if isinstance(value, str):
        attributes[name] = rng.choice((*TYPES, "", "Q9_K", "float16", "x" * 100))
    elif isinstance(value, list):
        value[rng.randrange(len(value))] = rng.choice((0, 1, -1, 3, 2**31, 2**62, -(2**63)))
    elif isinstance(value, int):
        attributes[name] = rng.choice((0, 1, -1, 2, 3, value + 1, 2**31, 2**62, -(2**63)))
    else:
        attributes[name] = rng.choice((0.0, -1.0, 1e-38, 1e38, float("inf"), float("nan")))
    if rng.random() < 0.1:
        del attributes[name]
