"""NumPy specification of GroupedExpertFFN."""

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def grouped_expert_ffn(
    x: Floats,
    ids: NDArray[np.int64],
    weights: Floats,
    gate: NDArray[Any],
    down: NDArray[Any],
    up: NDArray[Any] | None = None,
    *,
    gate_type: str,
    down_type: str,
    up_type: str | None = None,
) -> Floats:
    """y[t] = sum over slots j, in order, of weights[t, j] * down_e(silu(gate_e(x[t])) * up_e(x[t])), e = ids[t, j].

    x: [T, E]; ids and weights: [T, k], the experts that a router chose and their factors. gate, up: [X, F, row bytes]
    uint8 blocks of `gate_type` and `up_type`, or [X, F, E] for F32, F16 and BF16 (as uint16); down: [X, E, row bytes of
    F]. Without `up`, an expert's 2F rows of gate are its gate rows, then its up rows. Returns [T, E]. The kernel's
    activations="int8" rounds x and silu(gate) * up to 8 bits; this function does not.
    """
    gates, downs = _unpacked(gate, gate_type), _unpacked(down, down_type)
    if up is None or up_type is None:
        gates, ups = np.split(gates, 2, axis=1)
    else:
        ups = _unpacked(up, up_type)
    y = np.zeros(x.shape, np.float32)
    for t, j in np.ndindex(ids.shape):
        e = ids[t, j]
        g = gates[e] @ x[t]
        y[t] += weights[t, j] * (downs[e] @ (g / (1 + np.exp(-g)) * (ups[e] @ x[t])))
    return y


def _unpacked(stack: NDArray[Any], kind: str) -> Floats:
    unpacked: Floats = gguf.quants.dequantize(stack.view(np.uint8), gguf.GGMLQuantizationType[kind])
    return unpacked
