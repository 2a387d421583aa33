"""Kernels for sm_90 alone (TRIGRAPH_SM90_KERNELS=1): the bits of the portable ones.

tests/cuda/test_cuda.py runs this with the library of the emulator, tools/gpu.py on a GPU.
"""

import os
from typing import Any

import numpy as np
import pytest

from support.operators.expert_layer import Layer
from support.operators.row_bits import portable_kernels
from support.operators.run import Operator, same_bits


def test_they_are_asked_for() -> None:
    assert os.environ.get("TRIGRAPH_SM90_KERNELS") == "1"


EXPERTS: dict[str, dict[str, Any]] = {
    "as the 35B-A3B, narrow": dict(width=768, ffn=256, k=5, gate_type="Q4_K", down_type="Q6_K"),
    "rows of an odd number of bytes": dict(width=256, ffn=512, k=3, gate_type="Q6_K", down_type="Q4_K"),
    "Q8_0 and Q5_K": dict(width=512, ffn=1024, k=2, gate_type="Q8_0", down_type="Q5_K"),
    "more tiles than there is room for": dict(width=2048, ffn=512, k=8, gate_type="Q5_K", down_type="Q8_0"),
    "rows that do not fit": dict(width=6144, ffn=256, k=2, gate_type="Q8_0", down_type="Q6_K"),
}

MANY_TOKENS = "Q8_0 and Q5_K"
"""The layer that is also given 63 tokens, nearly as many as the kernel takes with two experts each, and more."""


@pytest.mark.parametrize("name", EXPERTS)
@pytest.mark.parametrize("shared", [False, True])
def test_experts(name: str, shared: bool) -> None:
    layer = Layer(experts=9, up_type=EXPERTS[name]["gate_type"], activations="int8", **EXPERTS[name])
    for tokens in (1, 3, 4, 63, 65) if name == MANY_TOKENS else (1, 3, 4):
        x, ids, weights = layer.tokens(tokens)
        inputs = [x, ids, weights, *layer.matrices(), *(layer.shared(tokens) if shared else ())]
        cuda = Operator("GroupedExpertFFN", inputs, [np.float32], layer.attributes, library="cuda")
        with portable_kernels():
            portable = Operator("GroupedExpertFFN", inputs, [np.float32], layer.attributes, library="cpu")
        (expected,) = portable(*inputs, output_shapes=[x.shape])
        for _ in range(2):
            assert same_bits(cuda(*inputs, output_shapes=[x.shape])[0], expected), tokens
