"""The exported graphs: static types, names, and weights that are where the file has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto

from support.models.random_gguf import Architecture, write_random
from trigraph.custom_ops import DOMAIN
from trigraph.exporter import ExportOptions, export
from trigraph.models.model import open_model

ARCHITECTURES: tuple[Architecture, ...] = ("qwen35", "qwen35moe", "qwen3next")
TYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.INT64: "int64",
    TensorProto.INT32: "int32",
}
Interface = dict[str, tuple[str, tuple[int | str, ...]]]


def interface(values: Sequence[onnx.ValueInfoProto]) -> Interface:
    """Names with types and dimensions."""
    found: Interface = {}
    for value in values:
        tensor = value.type.tensor_type
        found[value.name] = (TYPES[tensor.elem_type], tuple(dim.dim_param or dim.dim_value for dim in tensor.shape.dim))
    return found


@pytest.fixture(scope="module", params=ARCHITECTURES)
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    source = write_random(folder / "model.gguf", request.param, preset="nano")
    export(source, folder / "package", ExportOptions(kv_type="f32", activations="float32"))
    return folder / "package"


def load(package: Path, name: str) -> onnx.ModelProto:
    return onnx.load(package / f"{name}.onnx", load_external_data=False)


def test_without_a_head(tmp_path: Path) -> None:
    source = write_random(tmp_path / "model.gguf", "qwen35", preset="nano", mtp=False)
    manifest = export(source, tmp_path / "package")
    assert set(manifest.graphs) == {"prefill", "verify"} and manifest.draft_vocab is None
    assert not (tmp_path / "package/draft.onnx").exists()
    graph = load(tmp_path / "package", "prefill").graph
    inputs, outputs = interface(graph.input), interface(graph.output)
    assert "prev_hidden" in inputs and not {name for name in (*inputs, *outputs) if "mtp" in name}


@pytest.mark.parametrize("name", ["prefill", "draft", "verify"])
def test_every_value_is_typed(package: Path, name: str) -> None:
    """Every value has type and shape, symbolic in the contract's dimensions only, as inference finds it too."""
    model = load(package, name)
    graph = model.graph
    stated = interface([*graph.value_info, *graph.output])
    for node in graph.node:
        for output in node.output:
            symbols = {dim for dim in stated[output][1] if isinstance(dim, str)}
            assert symbols <= {"T", "S", "S+1", "S+T", "P", "slots", "pages"}

    # Inference starts from what custom nodes make.
    native = {output for node in graph.node if node.domain != DOMAIN for output in node.output}
    kept = [value for value in graph.value_info if value.name not in native]
    del graph.value_info[:]
    graph.value_info.extend(kept)
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    for name, (dtype, dims) in interface(inferred.graph.value_info).items():
        assert (dtype, len(dims)) == (stated[name][0], len(stated[name][1])), name
        fixed = [(dim, own) for dim, own in zip(dims, stated[name][1], strict=True) if isinstance(dim, int) and dim]
        assert all(dim == own for dim, own in fixed), name


def test_names(package: Path) -> None:
    names = [node.name for node in load(package, "verify").graph.node]
    assert len(set(names)) == len(names)
    assert {"embed", "blk.3.attn.qkv", "blk.3.attn.kv_write", "blk.3.attn.mix", "blk.0.gdn.mix", "output"} <= set(names)


@pytest.mark.parametrize("name", ["prefill", "verify", "draft"])
def test_onnxruntime_only_copies(package: Path, name: str) -> None:
    """Its arithmetic depends on the processor; all that computes is an operator of ours."""
    graph = load(package, name).graph
    native = [node.op_type for node in graph.node if node.domain != DOMAIN]
    assert set(native) <= {"Gather"}


@pytest.mark.parametrize("name", ["prefill", "verify", "draft"])
def test_nodes_of_a_layer(package: Path, name: str) -> None:
    """About ten nodes a layer: each costs a host some microseconds."""
    graph = load(package, name).graph
    layers = {"prefill": 4, "verify": 4, "draft": 1}[name]
    assert len(graph.node) <= 11 * layers + 15


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_onnx_checker(architecture: Architecture, tmp_path: Path) -> None:
    """On a package with copied weights: the checker, unlike ONNX Runtime, refuses files with several hard links."""
    source = write_random(tmp_path / "model.gguf", architecture, preset="nano")
    manifest = export(source, tmp_path / "package", ExportOptions(weights="copy"))
    for name in manifest.graphs:
        onnx.checker.check_model(tmp_path / "package" / f"{name}.onnx")


def initializers(package: Path, name: str) -> dict[str, tuple[Any, ...]]:
    """For each external initializer its file, offset, length, type and dimensions."""
    found = {}
    for tensor in load(package, name).graph.initializer:
        place = {entry.key: entry.value for entry in tensor.external_data}
        if place:
            dims = tuple(tensor.dims)
            found[tensor.name] = (place["location"], int(place["offset"]), int(place["length"]), tensor.data_type, dims)
    return found


def test_weights_are_where_the_file_has_them(package: Path) -> None:
    """Each initializer is exactly one tensor's bytes, and the graphs agree on them."""
    model = open_model(package / "model.gguf")
    used: set[str] = set()
    places: dict[str, tuple[Any, ...]] = {}
    for name in ("prefill", "draft", "verify"):
        for weight, place in initializers(package, name).items():
            tensor = model.tensor(weight)
            assert place[:3] == ("model.gguf", tensor.offset, tensor.nbytes)
            assert places.setdefault(weight, place) == place
            used.add(weight)
    assert used == set(model.tensors)


def test_draft_vocab_is_a_slice(tmp_path: Path) -> None:
    source = write_random(tmp_path / "model.gguf", "qwen35", preset="nano", dtype="Q8_0", tied=True)
    manifest = export(source, tmp_path / "package", ExportOptions(draft_vocab=100))
    table = open_model(source).tensor("token_embd.weight")
    found = initializers(tmp_path / "package", "draft")
    assert manifest.draft_vocab == 100
    assert found["token_embd.weight"][1:3] == (table.offset, table.nbytes)
    assert found["token_embd.weight[:100]"][1:] == (
        table.offset,
        100 * table.row_bytes,
        TensorProto.UINT8,
        (100, table.row_bytes),
    )


def test_fused_experts(tmp_path: Path) -> None:
    """Gate and up in one tensor: the input for up is absent."""
    source = write_random(tmp_path / "model.gguf", "qwen35moe", preset="nano", fused=True)
    export(source, tmp_path / "package")
    experts = [node for node in load(tmp_path / "package", "verify").graph.node if node.op_type == "GroupedExpertFFN"]
    assert experts and all(node.input[5] == "" for node in experts)
    assert all("up_type" not in {attribute.name for attribute in node.attribute} for node in experts)
