"""What StreamNorm and StreamMean compute, in NumPy and float64: a kernel differs by its float32 rounding."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def stream_norm(
    x: Floats,
    weight: Floats,
    block: Floats | None = None,
    inject: Floats | None = None,
    *,
    streams: int,
    eps: float,
) -> tuple[Floats, Floats]:
    """Norms of each stream of sum [T, streams x D], and sum itself.

    sum = x + 2 sigmoid(inject / streams) block, with block [T, D] and inject [T, streams]; x alone without them.
    """
    hidden = weight.size // streams
    total = x.reshape(len(x), streams, hidden).astype(np.float64)
    if block is not None and inject is not None:
        total = total + 2 / (1 + np.exp(-inject.astype(np.float64)[..., None] / streams)) * block[:, None]
    y = total / np.sqrt(np.mean(total * total, axis=-1, keepdims=True) + eps) * weight.reshape(streams, hidden)
    return y.reshape(len(x), -1).astype(np.float32), total.reshape(len(x), -1).astype(np.float32)


def stream_mean(x: Floats, logits: Floats, *, streams: int) -> Floats:
    """The mean over the streams of sigmoid(logits) x, both [T, streams x D]: [T, D]."""
    gated = x / (1 + np.exp(-logits.astype(np.float64)))
    return np.asarray(gated.reshape(len(x), streams, -1).mean(axis=1), np.float32)
