"""Single operators of ours, lowered, on a GPU or a software one, against float64."""

import numpy as np
import pytest
from ml_dtypes import bfloat16
from onnx import TensorProto

from support.block_weights import activations, weights
from support.gdn_cases import SMALL, STEPS, Shape, assert_close, make_step, random_rows, random_state, random_weights
from support.webgpu import run
from trigraph.custom_ops.gated_delta_net.reference import State, gated_delta_net
from trigraph.models.tensor_types import FLOAT_TYPES, dequantize
from trigraph.runtime.device.webgpu.blocks import LAYOUTS

FLOAT = TensorProto.FLOAT


@pytest.mark.parametrize("type", [*FLOAT_TYPES, *LAYOUTS])
@pytest.mark.parametrize("rows", [1, 5])
def test_products(type: str, rows: int) -> None:
    x, weight = activations(rows, 512), weights(type, 48, 512)
    known = dequantize(weight.view(np.uint8) if type == "BF16" else weight, type)
    weight = weight.view(bfloat16) if type == "BF16" else weight
    found = run("BlockMatMul", {"x": x, "weight": weight}, {"y": FLOAT}, types=type, activations="float32")["y"]
    assert_close(found, x.astype(np.float64) @ known.astype(np.float64).T, 2e-5)


@pytest.mark.parametrize("shape", [SMALL, Shape(2, 4, 32, sigmoid_gate=True), Shape(2, 6, 64, tiled=False)])
@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_gated_delta_net(shape: Shape, commit: bool, step: tuple[list[int], ...]) -> None:
    rng = np.random.default_rng(3)
    rows, known = random_rows(rng, shape, sum(step[0])), random_weights(rng, shape)
    past, given = random_state(rng, shape, 5), make_step(*step)
    more = np.minimum(np.arange(max(4, len(rows))), len(rows) - 1)  # as graphs pad them
    inputs = {
        **{name: getattr(rows, name)[more] for name in ("qkv", "z", "alpha", "beta")},
        **{f"{name}.weight": getattr(known, name) for name in ("conv", "dt_bias", "a", "norm")},
        **{name: getattr(past, name) for name in ("state", "window", "gates")},
        **{name: getattr(given, name) for name in ("cu_seqlens", "past_lens", "accepted", "slots_in", "slots_out")},
        "input_ids": np.zeros(len(rows), np.int64),
    }
    outputs = dict.fromkeys(("y", "state.out", "window.out", "gates.out"), FLOAT)
    found = run("GatedDeltaNet", inputs, outputs, **shape.attributes(commit))
    y, present = gated_delta_net(
        *(rows.qkv, rows.z, rows.alpha, rows.beta, known, past, given),
        k_heads=shape.k_heads, eps=1e-6, tiled=shape.tiled, commit=commit, sigmoid_gate=shape.sigmoid_gate,
    )  # fmt: skip
    assert_close(found["y"][: len(rows)], y, 1e-4)
    assert_close(found["state.out"], present.state, 1e-5)
    _check_pending(found, present, given.slots_out, [0 if commit else count for count in step[0]])


def _check_pending(found: dict[str, np.ndarray], known: State, slots: np.ndarray, pending: list[int]) -> None:
    """The columns of the last tokens, and of those that are pending with their gates."""
    for slot, count in zip(slots, pending, strict=True):
        assert (found["window.out"][slot, : 3 + count] == known.window[slot, : 3 + count]).all()
        assert_close(found["gates.out"][slot, :count], known.gates[slot, :count], 1e-5)
    untouched = np.setdiff1d(np.arange(len(known.window)), slots)
    assert (found["window.out"][untouched] == known.window[untouched]).all()
