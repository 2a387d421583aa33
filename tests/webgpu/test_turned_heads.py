"""Tables of sines and cosines are those that the operators of a cache turn heads with."""

import numpy as np
import pytest

from support.models.packages import Packages
from trigraph.custom_ops.paged_attention.reference import _norm_rotate
from trigraph.exporter.package.external import load_graph
from trigraph.models.rope_scaling import parse_rope_scaling
from trigraph.runtime.device.webgpu.lowering.graph import lower


@pytest.mark.parametrize("scaling", ["none", "yarn:4"])
def test_turns(scaling: str, packages: Packages) -> None:
    folder = packages("tiny-dense", "F32", rope_scaling=scaling)
    model = load_graph(folder / "verify.onnx")
    node = next(node for node in model.graph.node if node.op_type == "PagedAttention")
    rotary = {attribute.name: attribute.f or attribute.i for attribute in node.attribute}
    assert ("rope_factor" in rotary) == (parse_rope_scaling(scaling, 2048) is not None)
    cosines, sines = lower(model, 300)["turns"].make(np.empty(0))
    dims = int(rotary["rope_dims"])
    heads = np.zeros((300, 1, dims), np.float32)
    heads[..., : dims // 2] = 1  # a norm leaves them, times the root of 2
    turned = _norm_rotate(heads, np.ones(dims), np.arange(300)[:, None], rotary)[:, 0] / 2**0.5  # type: ignore[arg-type]
    assert np.abs(turned - np.concatenate([cosines, sines], 1)).max() < 2e-3
