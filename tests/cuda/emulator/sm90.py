"""Kernels for sm_90 alone (TRIGRAPH_SM90_KERNELS=1): the bits of the portable ones.

tests/cuda/test_cuda.py runs this with the library of the emulator, tools/gpu.py on a GPU.
"""

import os
from typing import Any

import numpy as np
import pytest

from support import attention_step
from support.attention_step import Attention, Heads
from support.expert_layer import Layer
from support.gdn_cases import (
    K,
    Kernel,
    Shape,
    assert_same_state,
    empty_state,
    make_step,
    random_rows,
    random_state,
    random_weights,
)
from support.operators import Operator, same_bits
from support.row_bits import portable_kernels

LENGTHS = (1, 3, 63, 64, 65, 129, 255, 256, 257, 600)
"""Of texts: a block of a cluster has 64 positions of a split's 256."""


def test_they_are_asked_for() -> None:
    assert os.environ.get("TRIGRAPH_SM90_KERNELS") == "1"


@pytest.mark.parametrize("heads", [Heads(256, 2, 8, 64), Heads(128, 1, 3, 7), Heads(64, 2, 13), Heads(256, 1, 1)])
def test_attention_of_one_row_and_of_two(heads: Heads) -> None:
    cuda = Attention(heads, library="cuda")
    with portable_kernels():
        portable = Attention(heads, library="cpu")
    for rows in (1, 2, 3):
        for length in (length for length in LENGTHS if length >= rows):
            step = attention_step.make_step(heads, [rows], [length - rows], seed=length)
            cache = portable.write(step)
            for _ in range(2):  # the second run finds counters as the first one left them
                assert same_bits(cuda.attend(step, *cache), portable.attend(step, *cache)), (rows, length)


def test_attention_of_several_texts() -> None:
    heads = Heads(256, 1, 3, 16)
    cuda = Attention(heads, library="cuda")
    with portable_kernels():
        portable = Attention(heads, library="cpu")
    step = attention_step.make_step(heads, [1, 2, 1], [700, 0, 64])
    cache = portable.write(step)
    assert same_bits(cuda.attend(step, *cache), portable.attend(step, *cache))


def test_a_page_that_is_not_there_is_an_error() -> None:
    heads = Heads(256, 2, 8, 64)
    attention, step = Attention(heads, library="cuda"), attention_step.make_step(heads, [1], [300])
    cache = attention.write(step)
    right = attention.attend(step, *cache)
    step.page_table[0, 2], kept = 99, step.page_table[0, 2]
    with pytest.raises(Exception, match=r"page_table\[0\]\[2\] is page 99"):
        attention.attend(step, *cache)
    step.page_table[0, 2] = kept
    assert same_bits(attention.attend(step, *cache), right)


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("shape", [Shape(2, 6, 64, tiled=False), Shape(1, 3, 128), Shape(3, 3, 128, sigmoid_gate=True)])
def test_delta_rule_of_few_tokens(shape: Shape, commit: bool) -> None:
    rng = np.random.default_rng(0)
    weights = random_weights(rng, shape)
    cuda = Kernel(shape, weights, commit=commit, library="cuda")
    with portable_kernels():
        portable = Kernel(shape, weights, commit=commit, library="cpu")
    for tokens in (1, 2, 4, 7, 8):
        for accepted, slot_out, past in ((0, 1, 0), (0, 1, 9), (1, 1, 9), (3, 2, 9), (K, 1, 9), (K, 0, 9)):
            state = random_state(rng, shape, 3) if past else empty_state(shape, 3)
            step, rows = make_step([tokens], [past], [accepted], [1], [slot_out]), random_rows(rng, shape, tokens)
            (found, after), (expected, wanted) = (kernel(rows, state, step) for kernel in (cuda, portable))
            assert same_bits(found, expected), (tokens, accepted)
            assert_same_state(after, wanted)


EXPERTS: dict[str, dict[str, Any]] = {
    "as the 35B-A3B, narrow": dict(width=768, ffn=256, k=5, gate_type="Q4_K", down_type="Q6_K"),
    "rows of an odd number of bytes": dict(width=256, ffn=512, k=3, gate_type="Q6_K", down_type="Q4_K"),
    "Q8_0 and Q5_K": dict(width=512, ffn=1024, k=2, gate_type="Q8_0", down_type="Q5_K"),
    "more tiles than there is room for": dict(width=2048, ffn=512, k=8, gate_type="Q5_K", down_type="Q8_0"),
    "rows that do not fit": dict(width=6144, ffn=256, k=2, gate_type="Q8_0", down_type="Q6_K"),
}


@pytest.mark.parametrize("name", EXPERTS)
@pytest.mark.parametrize("shared", [False, True])
def test_experts(name: str, shared: bool) -> None:
    layer = Layer(experts=9, up_type=EXPERTS[name]["gate_type"], activations="int8", **EXPERTS[name])
    for tokens in (1, 3, 4, 63, 65):
        x, ids, weights = layer.tokens(tokens)
        inputs = [x, ids, weights, *layer.matrices(), *(layer.shared(tokens) if shared else ())]
        cuda = Operator("GroupedExpertFFN", inputs, [np.float32], layer.attributes, library="cuda")
        with portable_kernels():
            portable = Operator("GroupedExpertFFN", inputs, [np.float32], layer.attributes, library="cpu")
        (expected,) = portable(*inputs, output_shapes=[x.shape])
        for _ in range(2):
            assert same_bits(cuda(*inputs, output_shapes=[x.shape])[0], expected), tokens
