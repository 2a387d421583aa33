"""Rows of a step that come from images: they take the place of embeddings of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from trigraph.exporter.graphs.builder import FLOAT, INT64, GraphBuilder


@dataclass(frozen=True)
class ImageRows:
    """The inputs that hold them."""

    rows: ir.Value
    """[I, hidden], as vision.onnx makes them."""
    places: ir.Value
    """[I, 1]: which rows of the step they are."""


def image_inputs(graph: GraphBuilder, hidden: int) -> ImageRows:
    """The inputs of a prefill."""
    return ImageRows(graph.input("image_rows", FLOAT, ["I", hidden]), graph.input("image_places", INT64, ["I", 1]))


def with_images(graph: GraphBuilder, embedded: ir.Value, images: ImageRows | None, name: str) -> ir.Value:
    """Embeddings [T, hidden] with the rows of images in their places; as they are where there can be none."""
    if images is None:
        return embedded
    return graph.node("ScatterND", [embedded, images.places, images.rows], name)
