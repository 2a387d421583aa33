"""HostBlockGather: the bits of BlockGather, from a table in the host's memory.

tests/cuda/test_cuda.py runs this with the library of the emulator, tools/gpu.py on a GPU.
"""

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper

from support.operators.block_weights import random_blocks
from support.operators.run import ONNX_TYPE, device, provider, same_bits
from trigraph.custom_ops import DOMAIN, read_rows
from trigraph.custom_ops.block_gather.reference import block_gather
from trigraph.models.names import NGRAM_TABLE
from trigraph.runtime.device.cuda.library import CudaLibrary
from trigraph.runtime.device.parts.tables import host_tables, keep_tables

ROWS, BLOCKS = 700, 8
"""Of a table, and blocks of a row."""


def session_of(table: NDArray[Any], quant: str, threads: int) -> ort.InferenceSession:
    """Two nodes, the second one of a table that goes to the device."""
    tables = [helper.make_tensor(name, ONNX_TYPE[table.dtype], table.shape, table.tobytes(), raw=True)
              for name in (NGRAM_TABLE, "other")]  # fmt: skip
    nodes = [
        helper.make_node("BlockGather", ["ids", name], [f"y_{i}"], domain=DOMAIN, type=quant)
        for i, name in enumerate((NGRAM_TABLE, "other"))
    ]
    ids = helper.make_tensor_value_info("ids", ONNX_TYPE[np.dtype(np.int64)], ["T"])
    made = [helper.make_tensor_value_info(f"y_{i}", ONNX_TYPE[np.dtype(np.float32)], None) for i in range(2)]
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(DOMAIN, 1), helper.make_opsetid("trigraph.cuda", 1)]
    model = helper.make_model(
        helper.make_graph(nodes, "part", [ids], made, tables), opset_imports=opsets, ir_version=11
    )
    keep_tables(model, threads)
    assert [node.op_type for node in model.graph.node] == ["HostBlockGather", "BlockGather"]
    assert host_tables(model.graph) == {NGRAM_TABLE}
    CudaLibrary(device("cuda").path).use_read_rows(read_rows())
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(device("cuda").path))
    return ort.InferenceSession(model.SerializeToString(), options, providers=[provider("cuda")])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("quant", ["Q5_0", "IQ4_NL", "Q8_0", "Q6_K", "F32"])
def test_rows(quant: str, threads: int) -> None:
    """As many as a decode and a prompt ask for, in turns: what one call leaves is not the next one's."""
    table = (
        random_blocks(quant, ROWS, BLOCKS, 0)
        if quant != "F32"
        else np.random.default_rng(0).standard_normal((ROWS, 160), dtype=np.float32)
    )
    session, functions = session_of(table, quant, threads), CudaLibrary(device("cuda").path)
    for seed, count in enumerate((16, 64, 16, 1, 0, 259, 4800, 64)):
        ids = np.random.default_rng(seed).integers(0, ROWS, count)
        ids[-1:] = ROWS - 1
        found, other = session.run(["y_0", "y_1"], {"ids": ids})
        functions.wait()
        assert same_bits(np.asarray(found), block_gather(ids, table, quant))
        assert same_bits(np.asarray(found), np.asarray(other))


@pytest.mark.parametrize("bad", [-1, ROWS, 1 << 40])
def test_rows_that_the_table_lacks(bad: int) -> None:
    """Nothing is read there; the next call is right again."""
    table = random_blocks("Q5_0", ROWS, BLOCKS, 0)
    session, functions = session_of(table, "Q5_0", 2), CudaLibrary(device("cuda").path)
    with pytest.raises(Exception, match=rf"BlockGather: input ids\[2\] is {bad}, outside the 700 rows of the table"):
        session.run(["y_0"], {"ids": np.array([1, 2, bad])})
        functions.wait()
    ids = np.array([3, 4, 5])
    assert same_bits(np.asarray(session.run(["y_0"], {"ids": ids})[0]), block_gather(ids, table, "Q5_0"))
    functions.wait()
