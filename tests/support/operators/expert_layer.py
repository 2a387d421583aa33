"""Random layers of experts, and GroupedExpertFFN and its reference on them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.operators.run import LIBRARY, Operator
from trigraph.custom_ops.grouped_expert_ffn.reference import grouped_expert_ffn
from trigraph.models.synth.blocks import random_weights

STORED = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}  # the other types are uint8 blocks


def draw_weights(kind: str, shape: tuple[int, int, int], seed: int) -> NDArray[Any]:
    """[experts, rows, width] weights of a type, as the operator takes them (BF16 as its bits)."""
    experts, rows, width = shape
    pieces = random_weights(kind, experts * rows * width, width**-0.5, np.random.PCG64DXSM(seed))
    stored = np.concatenate([piece.reshape(-1) for piece in pieces])
    return stored.view(STORED.get(kind, np.uint8)).reshape(experts, rows, -1)


@dataclass
class Layer:
    """Random weights of one layer, and the operator that runs it."""

    width: int
    ffn: int
    experts: int
    k: int
    gate_type: str = "Q8_0"
    up_type: str | None = None  # None: gate|up in one tensor
    down_type: str = "Q8_0"
    activations: str = "float32"
    threads: int = 2
    library: str = LIBRARY

    def __post_init__(self) -> None:
        rows = self.ffn * (1 if self.up_type else 2)
        self.gate = draw_weights(self.gate_type, (self.experts, rows, self.width), 1)
        self.up = draw_weights(self.up_type, (self.experts, self.ffn, self.width), 2) if self.up_type else None
        self.down = draw_weights(self.down_type, (self.experts, self.width, self.ffn), 3)
        self.attributes = dict(gate_type=self.gate_type, down_type=self.down_type, activations=self.activations)
        if self.up_type:
            self.attributes["up_type"] = self.up_type
        x, ids, weights = self.tokens(1)
        self.operator = Operator(
            "GroupedExpertFFN",
            [x, ids, weights, *self.matrices()],
            [np.float32],
            self.attributes,
            threads=self.threads,
            library=self.library,
        )

    def matrices(self) -> list[Any]:
        stacks = ((self.gate, self.gate_type), (self.down, self.down_type), (self.up, self.up_type))
        return [("bf16", stack) if kind == "BF16" else stack for stack, kind in stacks]

    def tokens(self, count: int, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """x, ids and weights of `count` tokens, each with k different experts."""
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((count, self.width), dtype=np.float32)
        ids = np.argsort(rng.random((count, self.experts)), axis=1)[:, : self.k].astype(np.int64)
        return x, ids, rng.uniform(0.1, 1, ids.shape).astype(np.float32)

    def shared(self, count: int, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
        """What a shared expert gives for `count` tokens, and its gate."""
        rng = np.random.default_rng([seed, 1])
        return rng.standard_normal((count, self.width), np.float32), rng.standard_normal((count, 1), np.float32)

    def run(self, x: NDArray[Any], ids: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
        return self.operator(x, ids, weights, *self.matrices(), output_shapes=[x.shape])[0]

    def expected(
        self,
        x: NDArray[Any],
        ids: NDArray[Any],
        weights: NDArray[Any],
        shared: NDArray[Any] | None = None,
        shared_gate: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        return grouped_expert_ffn(
            x, ids, weights, self.gate, self.down, self.up, shared, shared_gate,
            gate_type=self.gate_type, down_type=self.down_type, up_type=self.up_type, activations=self.activations,
        )  # fmt: skip


def relative_error(found: NDArray[Any], expected: NDArray[Any]) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


SHAPES: list[dict[str, Any]] = [
    dict(width=256, ffn=256, experts=8, k=4, gate_type="Q4_K", up_type="Q4_K", down_type="Q6_K"),
    dict(width=512, ffn=256, experts=8, k=2, gate_type="Q4_K", down_type="Q5_K"),
    dict(width=256, ffn=64, experts=3, k=3, gate_type="Q6_K", up_type="Q5_K", down_type="Q8_0"),
    dict(width=96, ffn=32, experts=8, k=3, gate_type="Q8_0", down_type="Q8_0"),
    dict(width=160, ffn=64, experts=1, k=1, gate_type="Q8_0", up_type="Q4_0", down_type="IQ4_NL"),
    dict(width=33, ffn=37, experts=3, k=2, gate_type="F32", up_type="F32", down_type="F32"),
    dict(width=64, ffn=32, experts=3, k=1, gate_type="BF16", up_type="F16", down_type="BF16"),
    dict(width=200, ffn=96, experts=8, k=4, gate_type="F16", down_type="F32"),
]


def name_of(shape: dict[str, Any]) -> str:
    return "-".join(str(value) for value in shape.values())
