"""Where ONNX Runtime's CUDA provider puts the nodes of each graph, all of which are ours."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from support.models.drafters import Drafters
from support.models.packages import Packages
from support.models.random_gguf import Architecture
from support.models.scaled import write_scaled
from support.models.seeing import SeeingPackages
from trigraph.custom_ops import DOMAIN
from trigraph.exporter import ExportOptions, export, read_manifest
from trigraph.runtime.device.choice import open_device
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.device.parts.experts import CUDA_DOMAIN
from trigraph.runtime.execution.sessions import session_options


@pytest.mark.parametrize("geometry", ["tiny-moe", "tiny-dense", "tiny-next", "tiny-streams"])
@pytest.mark.parametrize(
    ("quant", "activations", "kv_type"),
    [
        ("Q4_K_M", "int8", "f16"),
        ("mixed", "float32", "f32"),
        ("mixed", "int8", "q8_0"),
        ("F32", "float32", "q8_0"),
    ],
)
@pytest.mark.parametrize("graph", ["prefill", "verify", "draft"])
def test_every_node_is_on_the_gpu(
    packages: Packages, tmp_path: Path, geometry: str, quant: str, activations: str, kv_type: str, graph: str
) -> None:
    """No node on the CPU, and no copy between the two: of all types of weights, activations, keys and values."""
    folder = packages(geometry, quant, activations=activations, kv_type=kv_type)
    path = folder / f"{graph}.onnx"
    if not path.exists():
        pytest.skip(f"{geometry} has no {graph}")
    assert_on_the_gpu(folder, graph, tmp_path)


@pytest.mark.parametrize("tower", ["F16", "Q8_0"])
@pytest.mark.parametrize("graph", ["prefill", "verify", "draft", "vision"])
def test_every_node_for_images(seeing: SeeingPackages, tmp_path: Path, tower: str, graph: str) -> None:
    assert_on_the_gpu(seeing("tiny-moe", "Q4_K_M", tower), graph, tmp_path)


@pytest.mark.parametrize("architecture", ["qwen35", "qwen35moe"])
@pytest.mark.parametrize("graph", ["prefill", "verify", "draft"])
def test_every_node_of_matrices_with_factors(tmp_path: Path, architecture: Architecture, graph: str) -> None:
    out = tmp_path / "package"
    export(write_scaled(tmp_path / "model.gguf", architecture), out, ExportOptions(weights="reference"))
    assert_on_the_gpu(out, graph, tmp_path)


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark"])
@pytest.mark.parametrize("graph", ["prefill", "verify", "draft", "block"])
def test_every_node_of_a_block_drafter(packages: Packages, tmp_path: Path, kind: str, graph: str) -> None:
    assert_on_the_gpu(packages("tiny-moe", "Q4_K_M", drafter=kind), graph, tmp_path)


@pytest.mark.parametrize("graph", ["prefill", "verify", "block"])
def test_every_node_of_a_drafter_beside_a_tower(
    synthetic: Callable[[str, str], Path], seeing: SeeingPackages, drafters: Drafters, tmp_path: Path, graph: str
) -> None:
    """Windows, causal layers, scaled and capped logits."""
    odd: dict[str, Any] = {
        "window": 70,
        "sliding": (True, False),
        "causal": (True, False),
        "logit_scale": 0.5,
        "logit_cap": 3.0,
    }
    drafter, out = drafters("dflash2", "tiny-moe", **odd), tmp_path / "package"
    options = ExportOptions(weights="reference", draft_model=drafter, mmproj=seeing.tower("tiny-moe", "F16"))
    export(synthetic("tiny-moe", "Q4_K_M"), out, options)
    assert_on_the_gpu(out, graph, tmp_path)


def assert_on_the_gpu(folder: Path, graph: str, tmp_path: Path) -> None:
    device = open_device("cuda")
    options = session_options(1, read_manifest(folder).weights_base(folder), device.library)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    model = onnx.load(folder / f"{graph}.onnx", load_external_data=False)
    device.weight_source(MappedWeights(), 1).adapt(model)
    session = device.session(model.SerializeToString(), options, graph)
    placed = Counter(part.ep_name for part in session.get_provider_graph_assignment_info() for node in part.get_nodes())
    run = onnx.load(options.optimized_model_filepath, load_external_data=False).graph.node
    assert placed == {"CUDAExecutionProvider": len(run)}
    assert {node.op_type for node in run if node.domain not in (DOMAIN, CUDA_DOMAIN)} == set()
