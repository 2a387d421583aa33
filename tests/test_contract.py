"""The contract page says what the graphs have: names, types and dimensions of inputs, outputs and state."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from trigraph.custom_ops import library_path
from trigraph.exporter import ExportOptions, Manifest, export, read_manifest
from trigraph.exporter.graphs.builder import IR_VERSION, OPSET
from trigraph.exporter.package.manifest import CONTRACT_VERSION, GRAPHS
from trigraph.models.errors import TrigraphError

PAGE = (Path(__file__).parents[1] / "exporter/CONTRACT.md").read_text(encoding="utf-8")
TYPES = {"int32": onnx.TensorProto.INT32, "int64": onnx.TensorProto.INT64, "float32": onnx.TensorProto.FLOAT}

Ports = dict[str, tuple[int, list[int | str]]]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, tiny_gguf: Path) -> Path:
    folder = tmp_path_factory.mktemp("contract") / "package"
    export(tiny_gguf, folder, ExportOptions(weights="reference"))
    return folder


@pytest.fixture(scope="module", params=GRAPHS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def table(header: str) -> Iterator[list[str]]:
    """The rows of the table whose header line starts with `header`."""
    lines = iter(PAGE.splitlines())
    for line in lines:
        if line.startswith(header):
            break
    next(lines)
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def read(text: str, sizes: dict[str, int], dtype: str | None = None) -> tuple[int, list[int | str]]:
    """`int32 [S, P]` as element type and dimensions."""
    found = re.match(r"(\w+)? ?\[([^]]*)\]", text)
    assert found, text
    dims = [size.strip() for size in found[2].split(",")]
    return TYPES[found[1] or dtype or ""], [sizes.get(size, size) for size in dims]


def ports(values: Any) -> Ports:
    found = {}
    for value in values:
        if not value.name.startswith(("past.", "present.")):
            tensor = value.type.tensor_type
            found[value.name] = (tensor.elem_type, [dim.dim_param or dim.dim_value for dim in tensor.shape.dim])
    return found


def test_inputs(package: Path, name: str) -> None:
    graph = onnx.load(package / f"{name}.onnx", load_external_data=False).graph
    sizes = {"hidden": read_manifest(package).config.hidden}
    stated: Ports = {}
    for names, kind, graphs, _ in table("| input |"):
        if graphs == "all" or name in graphs.split(", "):
            stated |= dict.fromkeys(re.findall(r"`(\w+)`", names), read(kind, sizes))
    assert stated == ports(graph.input)


def test_outputs(package: Path, name: str) -> None:
    graph = onnx.load(package / f"{name}.onnx", load_external_data=False).graph
    config = read_manifest(package).config
    sizes = {"hidden": config.hidden, "vocab": config.vocab}
    column = ("verify", "prefill", "draft").index(name)
    stated: Ports = {}
    for output, *cells in table("| output |"):
        dtype = next(cell for cell in cells if cell).split()[0]
        if cells[column]:
            stated[output.strip("`")] = read(cells[column], sizes, dtype)
    assert stated == ports(graph.output)


def test_state(package: Path, name: str) -> None:
    graph = onnx.load(package / f"{name}.onnx", load_external_data=False).graph
    manifest = read_manifest(package)
    stated = set()
    for names, kind, graphs in table("| X |"):
        if name not in graphs.split(", "):
            continue
        recurrent = names.startswith("`gdn")
        layers = [i for i, kind in enumerate(manifest.config.recurrent) if kind == recurrent]
        first = "slots" if recurrent else "pages"
        assert recurrent == ("[slots, " in kind) or kind == "as `kv`"
        for part in re.findall(r"`([^`]+)`", names):
            stated |= {(part.format(layer=layer), first) for layer in layers}
    for values, prefix in ((graph.input, "past."), (graph.output, "present.")):
        found = {(v.name.removeprefix(prefix), v.type.tensor_type.shape.dim[0].dim_param): v for v in values}
        assert {key for key, value in found.items() if value.name.startswith(prefix)} == stated
    assert {(t.name, t.dims[0]) for t in manifest.state if name in t.graphs} == stated


def test_versions(package: Path, name: str) -> None:
    model = onnx.load(package / f"{name}.onnx", load_external_data=False)
    assert PAGE.splitlines()[2].startswith(f"Version {CONTRACT_VERSION}. ")
    assert f"ONNX opset {OPSET}, IR version {IR_VERSION}, " in PAGE
    assert model.model_version == CONTRACT_VERSION and model.ir_version == IR_VERSION
    assert {o.domain: o.version for o in model.opset_import} == {
        "": OPSET,
        "trigraph": 1,
    }


def test_manifest_keys(package: Path) -> None:
    keys = {key for names, _ in table("| key |") for key in re.findall(r"`(\w+)`", names)}
    assert keys <= {"contract_version", *Manifest.__dataclass_fields__}


def test_library(operator_library: Path) -> None:
    library = ctypes.CDLL(str(operator_library))
    assert library.RegisterCustomOps and library.trigraph_version
    assert operator_library == library_path("cpu")
    with pytest.raises(TrigraphError, match=r"operator library \S+trigraph_abacus\.\w+ not found"):
        library_path("abacus")
