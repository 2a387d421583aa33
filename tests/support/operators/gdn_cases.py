"""Random cases for GatedDeltaNet, and the operator and its reference behind one call."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from support.operators.run import LIBRARY, Operator, same_bits
from trigraph.custom_ops.gated_delta_net.reference import State, Step, Weights, gated_delta_net

K = 8
EPS = 1e-6


@dataclass(frozen=True)
class Shape:
    k_heads: int
    v_heads: int
    dim: int
    tiled: bool = True
    sigmoid_gate: bool = False

    @property
    def channels(self) -> int:
        return (2 * self.k_heads + self.v_heads) * self.dim

    def attributes(self, commit: bool) -> dict[str, Any]:
        """Those of a node."""
        found: dict[str, Any] = {"k_heads": self.k_heads, "eps": EPS, "tiled": int(self.tiled), "commit": int(commit)}
        return found | ({"gate": "sigmoid"} if self.sigmoid_gate else {})


SMALL = Shape(2, 4, 32)
SHAPES = [
    SMALL,
    Shape(2, 4, 32, sigmoid_gate=True),
    Shape(2, 6, 64, tiled=False),
    Shape(1, 3, 128),
    Shape(3, 3, 48, tiled=False),
    Shape(1, 20, 16),
    Shape(16, 128, 16),
]


# lengths, past_lens, accepted, slots_in, slots_out; every slot has K tokens pending
STEPS: list[tuple[list[int], ...]] = [
    ([1], [0], [0], [2], [2]),
    ([5, 1, 8], [9, 0, 11], [8, 0, 3], [0, 2, 1], [0, 3, 1]),
    ([1, 2], [4, 4], [0, 4], [1, 1], [2, 4]),
    ([3], [1], [1], [4], [0]),
]


@dataclass(frozen=True)
class Rows:
    """Projections of some tokens."""

    qkv: np.ndarray
    z: np.ndarray
    alpha: np.ndarray
    beta: np.ndarray

    def __getitem__(self, rows: slice) -> "Rows":
        return Rows(self.qkv[rows], self.z[rows], self.alpha[rows], self.beta[rows])

    def __len__(self) -> int:
        return len(self.qkv)


def join(parts: Sequence[Rows]) -> Rows:
    return Rows(*(np.concatenate([getattr(p, n) for p in parts]) for n in ("qkv", "z", "alpha", "beta")))


def random_rows(rng: np.random.Generator, shape: Shape, count: int) -> Rows:
    def normal(width: int) -> np.ndarray:
        return rng.standard_normal((count, width), dtype=np.float32)

    return Rows(
        normal(shape.channels), normal(shape.v_heads * shape.dim), 2 * normal(shape.v_heads), normal(shape.v_heads)
    )


def random_weights(rng: np.random.Generator, shape: Shape) -> Weights:
    return Weights(
        conv=(rng.standard_normal((shape.channels, 4)) / 2).astype(np.float32),
        dt_bias=rng.standard_normal(shape.v_heads, dtype=np.float32),
        a=-np.exp(rng.uniform(-3, 1, shape.v_heads)).astype(np.float32),
        norm=rng.uniform(0.5, 1.5, shape.dim).astype(np.float32),
    )


def random_state(rng: np.random.Generator, shape: Shape, slots: int, pending: int = K) -> State:
    """Every slot in use, with `pending` tokens of an earlier verify."""
    gates = np.zeros((slots, K, 2, shape.v_heads), np.float32)
    gates[:, :, 0] = -rng.exponential(1.0, (slots, K, shape.v_heads))
    gates[:, :, 1] = rng.uniform(0, 1, (slots, K, shape.v_heads))
    gates[:, pending:] = np.array([0, -1], np.float32)[:, None]
    return State(
        state=rng.standard_normal((slots, shape.v_heads, shape.dim, shape.dim), dtype=np.float32),
        window=rng.standard_normal((slots, 3 + K, shape.channels), dtype=np.float32),
        gates=gates.reshape(slots, K, -1),
    )


def empty_state(shape: Shape, slots: int) -> State:
    """Slots full of NaN: what a start of a text must not read."""
    state = random_state(np.random.default_rng(0), shape, slots)
    for x in (state.state, state.window, state.gates):
        x.fill(np.nan)
    return state


def make_step(
    lengths: Sequence[int],
    past_lens: Sequence[int],
    accepted: Sequence[int],
    slots_in: Sequence[int],
    slots_out: Sequence[int] | None = None,
) -> Step:
    cu = np.concatenate([[0], np.cumsum(lengths)])
    return Step(
        *(
            np.array(x, np.int32)
            for x in (cu, past_lens, accepted, slots_in, slots_in if slots_out is None else slots_out)
        )
    )


class Kernel:
    """The operator for one shape, weights and form."""

    def __init__(
        self,
        shape: Shape,
        weights: Weights,
        *,
        commit: bool,
        threads: int = 1,
        aliased: bool = True,
        library: str = LIBRARY,
    ) -> None:
        self.shape, self.weights, self.commit, self.aliased = shape, weights, commit, aliased
        rng = np.random.default_rng(0)
        example = self._inputs(random_rows(rng, shape, 1), random_state(rng, shape, 1), make_step([1], [0], [0], [0]))
        attributes = shape.attributes(commit)
        alias = {1: 8, 2: 9, 3: 10} if aliased else {}
        self.operator = Operator(
            "GatedDeltaNet", example, [np.float32] * 4, attributes, threads=threads, alias=alias, library=library
        )

    def _inputs(self, rows: Rows, state: State, step: Step) -> list[np.ndarray]:
        w = self.weights
        tokens = [rows.qkv, rows.z, rows.alpha, rows.beta, w.conv, w.dt_bias, w.a, w.norm]
        indices = [step.cu_seqlens, step.past_lens, step.accepted, step.slots_in, step.slots_out]
        return [*tokens, state.state, state.window, state.gates, *indices]

    def __call__(self, rows: Rows, state: State, step: Step) -> tuple[np.ndarray, State]:
        shapes = [rows.z.shape, state.state.shape, state.window.shape, state.gates.shape]
        y, *present = self.operator(*self._inputs(rows, state, step), output_shapes=shapes)
        return y, State(*present)

    def reference(self, rows: Rows, state: State, step: Step) -> tuple[np.ndarray, State]:
        return gated_delta_net(
            rows.qkv, rows.z, rows.alpha, rows.beta, self.weights, state, step,
            k_heads=self.shape.k_heads, eps=EPS, tiled=self.shape.tiled, commit=self.commit,
            sigmoid_gate=self.shape.sigmoid_gate,
        )  # fmt: skip


def assert_close(actual: np.ndarray, wanted: np.ndarray, tolerance: float = 3e-6) -> None:
    """Largest difference against the largest value: single values may cancel to nearly nothing."""
    assert np.isfinite(actual).all()
    difference = float(np.abs(actual.astype(np.float64) - wanted).max(initial=0))
    assert difference <= tolerance * float(np.abs(wanted).max(initial=1e-30)), difference


def assert_same_state(actual: State, wanted: State) -> None:
    for name in ("state", "window", "gates"):
        assert same_bits(getattr(actual, name), getattr(wanted, name)), name
