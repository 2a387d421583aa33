"""The contract page says what the graphs have: names, types and dimensions of inputs, outputs and state.

Sizes are those that the random model was made with, and K and the page size those of the manifest.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple, get_args

import onnx
import pytest

from support.models.drafters import Drafters
from support.models.packages import Packages
from support.models.random_gguf import PRESETS, Architecture, write_random
from support.models.seeing import SeeingPackages
from trigraph.custom_ops import library_path
from trigraph.exporter import ExportOptions, Manifest, export, read_manifest
from trigraph.exporter.graphs.builder import IR_VERSION, OPSET
from trigraph.exporter.package.manifest import CONTRACT_VERSION, FEATURES, GRAPHS
from trigraph.models.errors import TrigraphError

PAGE = (Path(__file__).parents[2] / "exporter/CONTRACT.md").read_text(encoding="utf-8")
TYPES = {
    "int32": onnx.TensorProto.INT32,
    "int64": onnx.TensorProto.INT64,
    "float16": onnx.TensorProto.FLOAT16,
    "float32": onnx.TensorProto.FLOAT,
    "uint8": onnx.TensorProto.UINT8,
}
KEY_VALUE = ("key", "value")
KV_TYPES = {"f16": "float16", "f32": "float32", "q8_0": "uint8"}

Port = tuple[int, tuple[int | str, ...]]
"""Element type and dimensions."""


class Package(NamedTuple):
    folder: Path
    kv_type: str
    sizes: dict[str, int]
    """Of the dimensions that the page names."""


@pytest.fixture(scope="module", params=list(product(get_args(Architecture), KV_TYPES)), ids="-".join)
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Package:
    architecture, kv_type = request.param
    folder = tmp_path_factory.mktemp("contract")
    source = write_random(folder / "model.gguf", architecture, preset="nano")
    manifest = export(source, folder / "package", ExportOptions(kv_type=kv_type))
    g = PRESETS["nano"]
    sizes = {
        "hidden": g.hidden,
        "vocab": g.vocab,
        "kv heads": g.kv_heads,
        "v heads": g.v_heads,
        "2 x v heads": 2 * g.v_heads,
        "channels": (2 * g.k_heads + g.v_heads) * g.gdn_dim,
        "page size": manifest.page_size,
        "K": manifest.max_pending,
        "3+K": 3 + manifest.max_pending,
        "draft_vocab": manifest.draft_vocab or 0,
    }
    return Package(folder / "package", KV_TYPES[kv_type], sizes)


@pytest.fixture(params=[name for name in GRAPHS if name not in ("block", "vision")])
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


def read(text: str, sizes: dict[str, int], dtype: str | None = None) -> Port:
    """`int32 [S, P]` as element type and dimensions."""
    found = re.match(r"(\w+)? ?\[([^]]*)\]", text)
    assert found, text
    dims = [size.strip(" `") for size in found[2].split(",")]
    return TYPES[found[1] or dtype or ""], tuple(
        int(size) if size.isdigit() else sizes.get(size, size) for size in dims
    )


def ports(package: Package, name: str, side: str) -> tuple[dict[str, Port], dict[str, Port]]:
    """Inputs or outputs of a graph: all but the state, and the state by the names of its tensors."""
    others, state = {}, {}
    graph = onnx.load(package.folder / f"{name}.onnx", load_external_data=False).graph
    for value in graph.input if side == "past" else graph.output:
        tensor = value.type.tensor_type
        port = tensor.elem_type, tuple(dim.dim_param or dim.dim_value for dim in tensor.shape.dim)
        if value.name.startswith(f"{side}."):
            state[value.name.removeprefix(f"{side}.")] = port
        else:
            others[value.name] = port
    return others, state


def test_inputs(package: Package, name: str) -> None:
    stated: dict[str, Port] = {}
    for names, kind, graphs, _ in table("| input |"):
        if graphs == "all" or name in graphs.split(", "):
            stated |= dict.fromkeys(re.findall(r"`(\w+)`", names), read(kind, package.sizes))
    assert ports(package, name, "past")[0] == stated


def test_inputs_for_images(seeing: SeeingPackages) -> None:
    """Those of text, and the others; a tower's are all its own."""
    folder = seeing("tiny-dense", "F32")
    package = Package(folder, "float16", {"hidden": 256, "vocab": 512})
    for name in {*GRAPHS} - {"block"}:
        stated: dict[str, Port] = {}
        for header in ("| input |", "| image input |") if name != "vision" else ("| image input |",):
            for names, kind, graphs, _ in table(header):
                if graphs == "all" or name in graphs.split(", "):
                    stated |= dict.fromkeys(re.findall(r"`(\w+)`", names), read(kind, package.sizes))
        assert ports(package, name, "past")[0] == stated
        model = onnx.load(folder / f"{name}.onnx", load_external_data=False)
        assert (model.model_version, stated_features(model)) == (CONTRACT_VERSION, "images")
    assert re.search(r"`vision.onnx` is `embeddings`, (float32 \[N/4, hidden\])", PAGE)
    assert ports(package, "vision", "present")[0] == {"embeddings": (TYPES["float32"], ("N/4", 256))}


@pytest.mark.parametrize(("kind", "candidates", "edges"), [("dflash", 32, 1), ("dflash2", 8, 8), ("dspark", 32, 32)])
def test_block_drafters(packages: Packages, drafters: Drafters, kind: str, candidates: int, edges: int) -> None:
    """The block graph's ports, and state of the drafter's own sizes, beside the MTP head's."""
    package = Package(
        packages("tiny-dense", "F32", draft_model=drafters(kind)), "float16", {"C": candidates, "E": edges}
    )
    stated = {name.strip("`"): read(shape, package.sizes) for name, shape, _ in table("| block | type |")}
    found, state = ports(package, "block", "past")
    stated = {key: stated[key] for key in stated.keys() - {"positions", "ring_table"}}
    assert found | ports(package, "block", "present")[0] == stated
    pages = {
        f"draft.{layer}.{part}": (TYPES["float16"], ("pages", 64, 2, 64)) for layer in (0, 1) for part in KEY_VALUE
    }
    assert state == ports(package, "block", "present")[1] == pages
    assert ports(package, "draft", "past")[1].keys() == {"mtp.key", "mtp.value"}
    for name in ("prefill", "verify"):
        assert ports(package, name, "past")[1].keys() >= pages.keys()
    model = onnx.load(package.folder / "block.onnx", load_external_data=False)
    assert stated_features(model) == "drafter"


def test_rings(packages: Packages, drafters: Drafters) -> None:
    """One layer slides, and the other has pages; the MTP head knows of neither."""
    drafter = drafters("dflash", window=40, sliding=(True, False))
    package = Package(packages("tiny-dense", "F32", draft_model=drafter), "float16", {})
    (stated,) = (read(shape, package.sizes) for name, shape, _ in table("| block | type |") if "ring_table" in name)
    rows = {f"draft.{layer}.{part}": (("slots", 64), ("pages", 64))[layer] for layer in (0, 1) for part in KEY_VALUE}
    for name in ("prefill", "verify", "block"):
        inputs, state = ports(package, name, "past")
        assert inputs["ring_table"] == stated
        assert {key: port[1][:2] for key, port in state.items() if key.startswith("draft.")} == rows
    assert "ring_table" not in ports(package, "draft", "past")[0]


def test_outputs(package: Package, name: str) -> None:
    column = ("verify", "prefill", "draft").index(name)
    stated: dict[str, Port] = {}
    for output, *cells in table("| output |"):
        dtype = next(cell for cell in cells if cell).split()[0]
        if cells[column]:
            stated[output.strip("`")] = read(cells[column], package.sizes, dtype)
    assert ports(package, name, "present")[0] == stated


def state_rows(package: Package) -> Iterator[tuple[list[str], Port, list[str]]]:
    """For each row of the table of state: names of tensors, their type and dimensions, and the graphs."""
    layers = range(PRESETS["nano"].layers)
    attention = [layer for layer in layers if (layer + 1) % PRESETS["nano"].interval == 0]
    kinds: dict[str, Port] = {}
    for names, kind, graphs in table("| X |"):
        family = names[1:].split(".")[0]
        width = PRESETS["nano"].head_dim
        sizes = {
            "head dim": PRESETS["nano"].gdn_dim,
            "head size": width * 34 // 32 if package.kv_type == "uint8" else width,
        }
        text = kind.replace("float16, float32 or uint8", package.kv_type)
        same = re.fullmatch(r"as `(\w+)`", text)
        kinds[family] = kinds[same[1]] if same else read(text, package.sizes | sizes)
        numbers = attention if family == "kv" else [layer for layer in layers if layer not in attention]
        found = {part.format(layer=layer) for part in re.findall(r"`([^`]+)`", names) for layer in numbers}
        yield sorted(found), kinds[family], graphs.split(", ")


def test_state(package: Package, name: str) -> None:
    stated = {tensor: port for names, port, graphs in state_rows(package) if name in graphs for tensor in names}
    assert ports(package, name, "past")[1] == ports(package, name, "present")[1] == stated
    listed = read_manifest(package.folder).state
    assert {tensor.name: (TYPES[tensor.dtype], tensor.dims) for tensor in listed if name in tensor.graphs} == stated


def stated_features(model: onnx.ModelProto) -> str:
    return str({entry.key: entry.value for entry in model.metadata_props}["trigraph.features"])


def test_versions(package: Package, name: str) -> None:
    model = onnx.load(package.folder / f"{name}.onnx", load_external_data=False)
    assert PAGE.splitlines()[2].startswith(f"Version {CONTRACT_VERSION}. ")
    assert f"ONNX opset {OPSET}, IR version {IR_VERSION}, " in PAGE
    assert model.model_version == CONTRACT_VERSION and model.ir_version == IR_VERSION
    assert stated_features(model) == ""
    assert {o.domain: o.version for o in model.opset_import} == {"": OPSET, "trigraph": 1}


def test_manifest_keys() -> None:
    keys = {key for names, _ in table("| key |") for key in re.findall(r"`(\w+)`", names)}
    assert keys <= {"contract_version", "features", *Manifest.__dataclass_fields__}
    (meaning,) = (text for names, text in table("| key |") if names == "`features`")
    assert set(re.findall(r"\[`(\w+)`\]", meaning)) == {*FEATURES}


def test_library(operator_library: Path) -> None:
    library = ctypes.CDLL(str(operator_library))
    assert library.RegisterCustomOps and library.trigraph_version
    assert operator_library == library_path("cpu")
    with pytest.raises(TrigraphError, match=r"operator library \S+trigraph_abacus\.\w+ not found"):
        library_path("abacus")
