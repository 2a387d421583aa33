"""Repacked blocks stand for the weights that `gguf` unpacks, to the bit."""

import numpy as np
import pytest

from support.operators.block_weights import known_weights, random_blocks
from trigraph.runtime.device.webgpu import blocks
from trigraph.runtime.device.webgpu.blocks import LAYOUTS, repack


@pytest.mark.parametrize("type", LAYOUTS)
@pytest.mark.parametrize("piece", [1 << 20, 700])
def test_weights(type: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_PIECE", piece)
    stored = random_blocks(type, rows=9, blocks=4, seed=1)
    layout, (codes, scales, *offsets) = LAYOUTS[type], repack(stored, type)
    assert (codes.shape, scales.shape) == layout.packed_shapes(*stored.shape)
    if layout.bits == 4:
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(*scales.shape, layout.block)
    zero = 2.0 ** (layout.bits - 1)
    if not offsets:
        found = (codes.astype(np.float32) - np.float32(zero)) * scales[..., None]
    else:  # in float64, where the offset takes the zero's share away without a rounding
        minimums = offsets[0].T.astype(np.float64) - zero * scales.astype(np.float64)
        found = codes * scales[..., None].astype(np.float64) + minimums[..., None]
    known = known_weights(stored, type)
    found = found.reshape(known.shape)
    if not offsets:
        assert (found == known).all()  # -0.0 and 0.0 are one weight
    else:  # the float32 sum of offset and zero is rounded once
        assert np.abs(found - known).max() <= 2**-23 * np.abs(offsets[0]).max()
