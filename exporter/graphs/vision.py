"""The graph of a vision tower: patches of images to rows that a prefill takes in place of embeddings."""

from __future__ import annotations

import onnx_ir as ir

from trigraph.custom_ops import DOMAIN
from trigraph.exporter.graphs.builder import FLOAT, INT32, shape
from trigraph.exporter.graphs.network import Network
from trigraph.models.vision import shapes
from trigraph.models.vision.config import MERGE, PATCH_INPUTS, POSITION_TABLE, VisionConfig
from trigraph.models.vision.reference import ROPE_THETA


def build_vision(net: Network, config: VisionConfig) -> None:
    """Rows of the tokens of one or more images, one for each four patches; images do not see each other."""
    graph = net.graph
    patches = graph.input("patches", FLOAT, ["N", PATCH_INPUTS])
    places = graph.input("places", INT32, [2, "N"])
    rows, weights = graph.input("table_rows", INT32, [4, "N"]), graph.input("table_weights", FLOAT, [4, "N"])
    cu_seqlens = graph.input("cu_seqlens", INT32, ["images+1"])
    # A still image is two equal frames: the sum of what their weights make of it.
    frames = net.linears(patches, "patch.frames", {f"patch.{i}": name for i, name in enumerate(shapes.PATCH_WEIGHTS)})
    zeros = graph.constant("patch.no_bias", [0] * config.width, "float32")
    x = graph.node("BiasActivation", [frames[0], zeros, frames[1]], "patch.sum", domain=DOMAIN, activation="none")
    table = [net.vector(shapes.PATCH_BIAS), net.vector(POSITION_TABLE), rows, weights]
    x = graph.node("PositionRows", [x, *table], "patch.position", domain=DOMAIN)
    for layer in range(config.layers):
        x = _block(net, config, layer, x, places, cu_seqlens)
    normed = _norm(net, config, shapes.MERGER_NORM, x, "merger.norm")
    width = MERGE * MERGE * config.width
    shaped = graph.constant("merger.shape", [-1, width], "int64")
    merged = graph.node("Reshape", [normed, shaped], "merger.tokens", ["N/4", width])
    merged = _linear(net, shapes.MERGER_IN, merged, "merger.in", activation="gelu_erf")
    graph.output(_linear(net, shapes.MERGER_OUT, merged, "merger.out"), "embeddings")


def _block(
    net: Network, config: VisionConfig, layer: int, x: ir.Value, places: ir.Value, cu_seqlens: ir.Value
) -> ir.Value:
    """Attention of all patches of an image to all, and feed-forward, each with its residual."""
    name = f"vision.{layer}"

    def tensor(part: str) -> str:
        return shapes.in_block(layer, part)

    normed = _norm(net, config, tensor(shapes.LN1), x, f"{name}.attn_norm")
    if net.weights.has(f"{tensor(shapes.ATTN_EACH[0])}.weight"):
        each = [_linear(net, tensor(part), normed, f"{name}.attn.{part}") for part in shapes.ATTN_EACH]
        qkv = net.graph.node("Concat", each, f"{name}.attn.qkv", [shape(x)[0], 3 * config.width], axis=1)
    else:
        qkv = _linear(net, tensor(shapes.ATTN_QKV), normed, f"{name}.attn.qkv")
    mixed = net.graph.node(
        "PatchAttention",
        [qkv, places, cu_seqlens],
        f"{name}.attn.mix",
        [shape(x)[0], config.width],
        domain=DOMAIN,
        heads=config.heads,
        rope_theta=ROPE_THETA,
    )
    x = _linear(net, tensor(shapes.ATTN_OUT), mixed, f"{name}.attn.out", x)
    normed = _norm(net, config, tensor(shapes.LN2), x, f"{name}.ffn_norm")
    up = _linear(net, tensor(shapes.FFN_UP), normed, f"{name}.ffn.up", activation="gelu_tanh")
    return _linear(net, tensor(shapes.FFN_DOWN), up, f"{name}.ffn.down", x)


def _norm(net: Network, config: VisionConfig, norm: str, x: ir.Value, name: str) -> ir.Value:
    parameters = [net.vector(f"{norm}.weight"), net.vector(f"{norm}.bias")]
    return net.graph.node("LayerNorm", [x, *parameters], name, domain=DOMAIN, eps=config.eps)


def _linear(
    net: Network, matrix: str, x: ir.Value, name: str, residual: ir.Value | None = None, activation: str = "none"
) -> ir.Value:
    """activation(x times the transpose of a matrix, plus its bias) plus the residual."""
    product = net.linear(x, f"{matrix}.weight", f"{name}.product")
    inputs = [product, net.vector(f"{matrix}.bias"), *([] if residual is None else [residual])]
    return net.graph.node("BiasActivation", inputs, name, domain=DOMAIN, activation=activation)
