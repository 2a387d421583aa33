"""Tables that stay in the host's memory beside a GPU: of a file's largest weight, steps read a few rows."""

from __future__ import annotations

import onnx
from onnx import ModelProto, helper

from trigraph.custom_ops import DOMAIN
from trigraph.models.names import NGRAM_TABLE
from trigraph.runtime.device.parts.experts import CUDA_DOMAIN

HOST_GATHER = "HostBlockGather"


def keep_tables(model: ModelProto, threads: int) -> None:
    """Has rows of the table of n-grams read where it is mapped, by so many threads of the CPU."""
    nodes = [node for node in model.graph.node if node.domain == DOMAIN and node.op_type == "BlockGather"]
    for node in nodes:
        if node.input[1] == NGRAM_TABLE:
            node.op_type, node.domain = HOST_GATHER, CUDA_DOMAIN
            node.attribute.append(helper.make_attribute("threads", threads))


def host_tables(graph: onnx.GraphProto) -> set[str]:
    """The weights that nodes read there."""
    return {node.input[1] for node in graph.node if node.op_type == HOST_GATHER}
