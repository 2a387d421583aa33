"""BlockGather: the rows asked for, and errors that name the input."""

import numpy as np
import pytest

from support.operators.block_weights import random_blocks
from support.operators.run import LIBRARY, Operator, same_bits
from trigraph.custom_ops.block_gather.reference import block_gather


@pytest.mark.parametrize("tokens", [0, 1, 3, 65])
@pytest.mark.parametrize("threads", [1, 2])
def test_rows(isa: str, tokens: int, threads: int) -> None:
    table = random_blocks("Q6_K", 63, 4, 0)
    ids = np.random.default_rng(tokens).integers(0, 63, tokens)
    operator = Operator("BlockGather", [ids, table], [np.float32], {"type": "Q6_K"}, threads=threads)
    y = operator(ids, table, output_shapes=[(tokens, 1024)])[0]
    assert same_bits(y, block_gather(ids, table, "Q6_K"))


@pytest.mark.skipif(LIBRARY == "cuda", reason="a device's memory is aligned")
def test_odd_alignment(isa: str) -> None:
    table = random_blocks("Q8_0", 5, 3, 1)
    buffer = np.zeros(table.size + 1, np.uint8)
    buffer[1:] = table.reshape(-1)
    odd = buffer[1:].reshape(table.shape)
    operator = Operator("BlockGather", [np.zeros(1, np.int64), odd], [np.float32], {"type": "Q8_0"})
    ids = np.array([4, 0, 4])
    assert same_bits(operator(ids, odd)[0], block_gather(ids, table, "Q8_0"))


@pytest.mark.parametrize(
    ("ids", "table", "type", "message"),
    [
        (np.array([0, 63]), (63, 210), "Q6_K", r"ids\[1\] is 63"),
        (np.array([-1]), (63, 210), "Q6_K", r"ids\[0\] is -1"),
        (np.array([1 << 40]), (63, 210), "Q6_K", r"ids\[0\] is 1099511627776"),
        (np.array([[0]]), (63, 210), "Q6_K", r"ids has shape \[1, 1\]"),
        (np.array([0]), (63, 209), "Q6_K", "table has rows of 209 bytes"),
        (np.array([0]), (2, 3, 210), "Q6_K", "table has 3 dimensions"),
        (np.array([0]), (63, 210), "F32", "table holds uint8, expected float32"),
        (np.array([0]), (63, 210), "Q9_K", 'type "Q9_K" has no kernel'),
    ],
)
def test_errors(ids: np.ndarray, table: tuple[int, ...], type: str, message: str) -> None:
    weights = np.zeros(table, np.uint8)
    with pytest.raises(Exception, match=message):
        Operator("BlockGather", [ids, weights], [np.float32], {"type": type})(ids, weights)
