"""BlockGather in standard ONNX operators."""

from functools import cache

from trigraph.custom_ops.blocks.formats.function import UNPACK
from trigraph.custom_ops.scripting import Function, Tensor, body, op


@cache
def block_gather(type: str) -> Function:
    """The body for a table of a ggml type."""
    unpack = UNPACK[type]

    @body
    def block_gather(ids: Tensor, table: Tensor, type: str) -> Tensor:
        return unpack(op.Gather(table, ids))

    return block_gather
