"""Files that a graph points to: none but the weight files of its package."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import onnx

from trigraph.models.errors import TrigraphError, quote

_REMEDY = "export the package again"


def load_graph(path: Path) -> onnx.ModelProto:
    """A graph file without its weights. Raises TrigraphError when it is not an ONNX model."""
    try:
        return onnx.load(path, load_external_data=False)
    except OSError as error:
        raise TrigraphError(f"{path}: cannot be read: {error.strerror}; {_REMEDY}") from error
    except Exception as error:  # protobuf's own error classes differ between its implementations
        raise TrigraphError(f"{path}: is not an ONNX model; {_REMEDY}") from error


def load_checked(path: Path, allowed: Collection[str]) -> onnx.ModelProto:
    """Like load_graph. Raises TrigraphError too when the graph takes data from a file that is not `allowed`."""
    model = load_graph(path)
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    defaults = (attribute for function in model.functions for attribute in function.attribute_proto)
    for tensor in (*_of_graph(model.graph), *_of_nodes(nodes), *_of_attributes(defaults)):
        external = {entry.key: entry.value for entry in tensor.external_data}
        is_external = external or tensor.data_location == onnx.TensorProto.EXTERNAL
        if is_external and external.get("location") not in allowed:
            raise TrigraphError(
                f"{path}: tensor {quote(tensor.name)} is in {quote(external.get('location'))}, which is not a weight "
                f"file of the package; {_REMEDY}"
            )
    return model


def _of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        yield from _of_attributes(node.attribute)


def _of_attributes(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    """The tensors in attributes, and in the graphs in attributes."""
    for attribute in attributes:
        yield from (attribute.t, *attribute.tensors)
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)
        for graph in (attribute.g, *attribute.graphs):
            yield from _of_graph(graph)
            yield from _of_nodes(graph.node)
