"""What BiasActivation computes, in NumPy."""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def bias_activation(x: Floats, bias: Floats, residual: Floats | None = None, *, activation: str) -> Floats:
    """y = activation(x + bias) + residual over the rows of x [T, D].

    Activations: `none`; `gelu_erf`, x (1 + erf(x / sqrt(2))) / 2; `gelu_tanh`, its approximation
    x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2. They are float64 here.
    """
    total = (x + bias).astype(np.float64)
    if activation == "gelu_erf":
        total = total * (1 + _erf(total / math.sqrt(2))) / 2
    elif activation == "gelu_tanh":
        total = total * (1 + np.tanh(math.sqrt(2 / math.pi) * (total + 0.044715 * total**3))) / 2
    return (total if residual is None else total + residual).astype(np.float32)
