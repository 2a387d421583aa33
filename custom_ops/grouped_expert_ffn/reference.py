"""What GroupedExpertFFN computes, in NumPy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trigraph.custom_ops.block_matmul.reference import block_matmul

Floats = NDArray[np.float32]


def grouped_expert_ffn(
    x: Floats,
    ids: NDArray[np.int64],
    weights: Floats,
    gate: NDArray[Any],
    down: NDArray[Any],
    up: NDArray[Any] | None = None,
    shared: Floats | None = None,
    shared_gate: Floats | None = None,
    *,
    gate_type: str,
    down_type: str,
    up_type: str | None = None,
    activations: str = "float32",
) -> Floats:
    """y[t] = sum over slots j, in order, of weights[t, j] * down_e(silu(gate_e(x[t])) * up_e(x[t])), e = ids[t, j].

    x: [T, E]; ids and weights: [T, k], the experts that a router chose and their factors. gate, up: [X, F, row bytes]
    uint8 blocks of `gate_type` and `up_type`, or [X, F, E] for F32, F16 and BF16 (as uint16); down: [X, E, row bytes of
    F]. Without `up`, an expert's 2F rows of gate are its gate rows, then its up rows. A shared expert's
    result `shared` [T, E] comes last, times sigmoid(shared_gate [T, 1]). Returns [T, E].
    """
    if up is None or up_type is None:
        gate, up = np.split(gate, 2, axis=1)
        up_type = gate_type
    products = np.empty((*ids.shape, x.shape[1]), np.float32)
    for e in np.unique(ids):
        tokens, slots = np.nonzero(ids == e)
        g = block_matmul(x[tokens], gate[e], gate_type, activations)
        hidden = g / (1 + np.exp(-g)) * block_matmul(x[tokens], up[e], up_type, activations)
        products[tokens, slots] = block_matmul(hidden, down[e], down_type, activations)
    y = np.zeros_like(x)
    for j in range(ids.shape[1]):
        y += weights[:, j, None] * products[:, j]
    if shared is not None and shared_gate is not None:
        y += shared / (1 + np.exp(-shared_gate))
    return y
