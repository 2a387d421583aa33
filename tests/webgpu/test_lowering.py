"""Lowered graphs: the contract stays, weights are inputs, and what cannot run is refused with a sentence."""

from pathlib import Path
from typing import Any

import onnx
import pytest

from support.models.packages import Packages
from trigraph.custom_ops import DOMAIN
from trigraph.exporter.package.external import load_graph
from trigraph.models.errors import TrigraphError
from trigraph.models.synth import write_synthetic_mmproj
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.device.webgpu.lowering.graph import ON_CPU, lower
from trigraph.runtime.device.webgpu.weight_source import WebGpuWeightSource

GRAPHS = ("prefill", "verify", "draft")


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(
    ("geometry", "kv_type", "has_half"),
    [
        ("tiny-dense", "f16", True),
        ("tiny-moe", "f16", True),
        ("tiny-next", "f16", True),
        ("tiny-dense", "f16", False),
        ("tiny-dense", "q8_0", True),
    ],
)
def test_graph(graph: str, geometry: str, kv_type: str, has_half: bool, packages: Packages) -> None:
    model = load_graph(packages(geometry, "Q4_K_M", kv_type=kv_type) / f"{graph}.onnx")
    before = onnx.ModelProto()
    before.CopyFrom(model)
    weights = lower(model, 64, has_half=has_half)
    names = {name for weight in weights.values() for name in weight.names}
    ours = {node.op_type for node in model.graph.node if node.domain == DOMAIN}
    assert ours <= {*ON_CPU, "PreviousRows", "PagedKVWrite", "PagedAttention"}
    assert ("PagedKVWrite" in ours) == (kv_type == "q8_0" or not has_half)
    assert [value for value in model.graph.input if value.name not in names] == [*before.graph.input]
    assert model.graph.output == before.graph.output
    assert names <= {name for node in model.graph.node for name in node.input}
    given = {value.name for value in model.graph.input} | {tensor.name for tensor in model.graph.initializer} | {""}
    for node in model.graph.node:  # in order
        assert {*node.input} <= given, node
        given |= {*node.output}
    assert {value.name for value in model.graph.output} <= given


def test_weights_once(packages: Packages) -> None:
    """Graphs share what they read: the sum over all is that of one set."""
    folder = packages("tiny-dense", "Q4_K_M")
    found = [lower(load_graph(folder / f"{graph}.onnx"), 64) for graph in GRAPHS]
    parts = [{part.name: part for weight in weights.values() for part in weight.parts} for weights in found]
    assert all(parts[0][name] == part for name, part in parts[1].items())
    assert {*parts[1]} < {*parts[0]} | {*parts[1]}  # a prefill has some of the head's
    assert all(parts[0][name] == parts[2][name] for name in parts[0].keys() & parts[2].keys())


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("tiny-dense", "IQ4_XS", {}, "is of type IQ4_XS, and webgpu has products with F32, F16, BF16, Q4_0"),
    ("tiny-streams", "F32", {}, "webgpu has no counterpart of"),
    ("tiny-dense", "Q8_0", {"kv_type": "f32"}, "export with kv_type=f16 or q8_0, or use device=cpu"),
]


@pytest.mark.parametrize(("geometry", "quant", "options", "message"), REFUSED)
def test_refusals(geometry: str, quant: str, options: dict[str, Any], message: str, packages: Packages) -> None:
    with pytest.raises(TrigraphError, match=message) as caught:
        lower(load_graph(packages(geometry, quant, **options) / "verify.onnx"), 64)
    assert str(caught.value).endswith("use device=cpu")


def test_text_of_packages_with_images(packages: Packages, tmp_path: Path) -> None:
    """Their graphs are lowered as those without, and the tower is refused."""
    write_synthetic_mmproj("mmproj-tiny-dense", tmp_path / "mmproj.gguf", quant="F16")
    folder = packages("tiny-dense", "Q8_0", mmproj=tmp_path / "mmproj.gguf")
    for graph in GRAPHS:
        assert (
            lower(load_graph(folder / f"{graph}.onnx"), 64).keys()
            == lower(load_graph(packages("tiny-dense", "Q8_0") / f"{graph}.onnx"), 64).keys()
        )
    with pytest.raises(TrigraphError, match="webgpu does not read images yet; use device=cpu"):
        lower(load_graph(folder / "vision.onnx"), 64)


def test_other_operators_are_refused(packages: Packages) -> None:
    model = load_graph(packages("tiny-dense", "Q8_0") / "verify.onnx")
    next(node for node in model.graph.node if node.op_type == "RMSNorm").op_type = "Odd"
    with pytest.raises(TrigraphError, match="webgpu has no counterpart of 'Odd' yet; use device=cpu"):
        lower(model, 64)


@pytest.mark.parametrize(
    ("has_half", "said"),
    [(True, "and 2 of state"), (False, "and 0 of state; the CPU computes attention, with 2 MB of keys and values")],
)
def test_memory(has_half: bool, said: str, packages: Packages) -> None:
    """Weights that take more than --gpu-memory are refused before any is read; else the start says what they take."""
    folder = packages("tiny-moe", "Q8_0")
    source = WebGpuWeightSource(MappedWeights({}), {}, has_half=has_half)
    graphs = {graph: load_graph(folder / f"{graph}.onnx") for graph in GRAPHS}
    state = {"kv.3.key": 1 << 20, "mtp.key": 1 << 20}
    with pytest.raises(TrigraphError, match="more than gpu_memory, 1 MB; raise it"):
        source.hold(lambda: graphs, state, 1_000_000)
    graphs = {graph: load_graph(folder / f"{graph}.onnx") for graph in GRAPHS}
    (notice,) = source.hold(lambda: graphs, state, None)
    assert notice.endswith(f"{said}; the CPU computes the routed experts")
    assert source.reads_mapped
    taken = {value.name for graph in graphs.values() for value in graph.graph.input if ":" in value.name}
    assert sorted(taken) == sorted(name for weight in source._weights.values() for name in weight.names)
