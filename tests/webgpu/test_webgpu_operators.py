"""Single operators of ours, lowered, on a GPU or a software one, against float64."""

import numpy as np
import pytest
from ml_dtypes import bfloat16
from onnx import TensorProto

from support.devices.webgpu import run
from support.operators.block_weights import activations, weights
from support.operators.gdn_cases import (
    SMALL,
    STEPS,
    Rows,
    Shape,
    assert_close,
    empty_state,
    make_step,
    random_rows,
    random_state,
    random_weights,
)  # fmt: skip
from support.operators.run import same_bits
from trigraph.custom_ops.gated_delta_net.reference import State, Step, gated_delta_net
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


@pytest.mark.parametrize("type", ["F32", "Q4_0", "Q4_K", "Q6_K"])
def test_rows_alone(type: str) -> None:
    """From four on, a row has the bits that it has among any number."""
    x, weight = activations(70, 512), weights(type, 48, 512)

    def product(rows: np.ndarray) -> np.ndarray:
        return run("BlockMatMul", {"x": rows, "weight": weight}, {"y": FLOAT}, types=type, activations="float32")["y"]

    whole = product(x)
    for start, count in ((0, 4), (3, 5), (7, 16), (9, 33)):
        assert same_bits(product(x[start : start + count]), whole[start : start + count])


class _Layer:
    """Gated DeltaNet of one shape, lowered."""

    def __init__(self, shape: Shape, seed: int, commit: bool) -> None:
        self.shape, self.commit = shape, commit
        self.weights = random_weights(np.random.default_rng(seed), shape)

    def __call__(self, rows: Rows, past: State, step: Step) -> tuple[np.ndarray, State]:
        more = np.minimum(np.arange(max(4, len(rows))), len(rows) - 1)  # as graphs pad them
        inputs = {
            **{name: getattr(rows, name)[more] for name in ("qkv", "z", "alpha", "beta")},
            **{f"{name}.weight": getattr(self.weights, name) for name in ("conv", "dt_bias", "a", "norm")},
            **vars(past),
            **vars(step),
            "input_ids": np.zeros(len(rows), np.int64),
        }
        outputs = dict.fromkeys(("y", "state.out", "window.out", "gates.out"), FLOAT)
        y, *present = run("GatedDeltaNet", inputs, outputs, **self.shape.attributes(self.commit)).values()
        return y[: len(rows)], State(*present)

    def reference(self, rows: Rows, past: State, step: Step) -> tuple[np.ndarray, State]:
        shape = self.shape
        return gated_delta_net(
            *(rows.qkv, rows.z, rows.alpha, rows.beta, self.weights, past, step),
            k_heads=shape.k_heads, eps=1e-6, tiled=shape.tiled, commit=self.commit, sigmoid_gate=shape.sigmoid_gate,
        )  # fmt: skip


@pytest.mark.parametrize("shape", [SMALL, Shape(2, 4, 32, sigmoid_gate=True), Shape(2, 6, 64, tiled=False)])
@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_gated_delta_net(shape: Shape, commit: bool, step: tuple[list[int], ...]) -> None:
    rng, layer = np.random.default_rng(3), _Layer(shape, 4, commit)
    given = random_rows(rng, shape, sum(step[0])), random_state(rng, shape, 5), make_step(*step)
    (y, present), (known_y, known) = layer(*given), layer.reference(*given)
    assert_close(y, known_y, 1e-4)
    assert_close(present.state, known.state, 1e-5)
    _check_pending(present, known, given[2].slots_out, [0 if commit else count for count in step[0]])


def test_cuts() -> None:
    """A text of 11 tokens, at once and in pieces: the same rows and the same state, to the bit."""
    rng, layer = np.random.default_rng(5), _Layer(SMALL, 6, True)
    rows, empty = random_rows(rng, SMALL, 11), empty_state(SMALL, 2)
    whole, after = layer(rows, empty, make_step([11], [0], [0], [1]))
    state, done = empty, 0
    for count in (1, 4, 6):
        piece, state = layer(rows[done : done + count], state, make_step([count], [done], [0], [1]))
        assert same_bits(piece, whole[done : done + count])
        done += count
    assert same_bits(state.state[1], after.state[1])


def test_rejected_tokens() -> None:
    """Of a verify's tokens those that are kept count, be it after as many or more."""
    rng, layer = np.random.default_rng(7), _Layer(SMALL, 8, False)
    rows, past = random_rows(rng, SMALL, 9), random_state(rng, SMALL, 2)
    found = []
    for count in (2, 6):
        _, pending = layer(rows[:count], past, make_step([count], [9], [0], [0]))
        found.append(layer(rows[6:], pending, make_step([3], [11], [2], [0])))
    assert same_bits(found[0][0], found[1][0]) and same_bits(found[0][1].state, found[1][1].state)


def _check_pending(found: State, known: State, slots: np.ndarray, pending: list[int]) -> None:
    """The columns of the last tokens, and of those that are pending with their gates."""
    for slot, count in zip(slots, pending, strict=True):
        assert (found.window[slot, : 3 + count] == known.window[slot, : 3 + count]).all()
        assert_close(found.gates[slot, :count], known.gates[slot, :count], 1e-5)
    untouched = np.setdiff1d(np.arange(len(known.window)), slots)
    assert (found.window[untouched] == known.window[untouched]).all()
