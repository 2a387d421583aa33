"""BlockConvolution and CandidateEdges: the reference, bits of rows, and the errors of wrong inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators.run import LIBRARY, THREADS, Operator, same_bits
from trigraph.custom_ops.block_drafts.reference import block_convolution, candidate_edges

LENGTHS = [[1], [8], [8, 1, 3, 8]]


def random(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def starts(lengths: list[int]) -> NDArray[np.int32]:
    return np.cumsum([0, *lengths]).astype(np.int32)


class Convolution:
    """Of rows of `groups` x `share` channels, with two sets of `taps` kernels."""

    def __init__(self, groups: int, share: int, taps: int, threads: int = 1, library: str = LIBRARY) -> None:
        self._groups, self._width, self._taps = groups, groups * share, taps
        inputs, attributes = self.inputs([1]), {"first": taps, "taps": taps}
        self._run = Operator("BlockConvolution", inputs, [np.float32], attributes, threads=threads, library=library)

    def inputs(self, lengths: list[int]) -> tuple[Any, ...]:
        rows, all_taps = sum(lengths), 2 * self._taps
        x, kernels = random(rows, self._width), random(rows, all_taps * self._groups, seed=1)
        return x, kernels, random(all_taps, self._width, seed=2), starts(lengths)

    def __call__(self, *inputs: Any) -> NDArray[np.float32]:
        return self._run(*inputs, output_shapes=[inputs[0].shape])[0]

    def reference(self, *inputs: Any) -> NDArray[Any]:
        return block_convolution(*inputs, first=self._taps, taps=self._taps)


class Edges:
    """Of `count` candidates, whose rows have `rank` elements."""

    def __init__(
        self, count: int, rank: int, *, gated: bool = True, drafting: int = 1, threads: int = 1, library: str = LIBRARY
    ) -> None:
        self._count, self._rank, self._gated, self._drafting = count, rank, gated, drafting
        attributes = {"drafting": drafting}
        self._run = Operator(
            "CandidateEdges", self.inputs([1]), [np.float32], attributes, threads=threads, library=library
        )

    def inputs(self, lengths: list[int]) -> tuple[Any, ...]:
        rows, rank, count = sum(lengths), self._rank, self._count
        pairs = [random(rows * count, rank, seed=seed) for seed in (2, 3)]
        gate = [random(rows, rank, seed=4)] if self._gated else []
        return random(rows, count), random(rows, rank, seed=1), *pairs, starts(lengths), *gate

    def __call__(self, *inputs: Any) -> NDArray[np.float32]:
        return self._run(*inputs, output_shapes=[(*inputs[0].shape, self._count)])[0]

    def reference(self, *inputs: Any) -> NDArray[Any]:
        return candidate_edges(*inputs, drafting=self._drafting)


Made = Convolution | Edges
CASES: list[tuple[Any, ...]] = [
    (Convolution, {"groups": 8, "share": 32, "taps": 3}),
    (Convolution, {"groups": 20, "share": 16, "taps": 2}),
    (Convolution, {"groups": 7, "share": 5, "taps": 9}),
    (Edges, {"count": 8, "rank": 32}),
    (Edges, {"count": 16, "rank": 256, "drafting": 0}),
    (Edges, {"count": 33, "rank": 40, "gated": False}),
    (Edges, {"count": 1, "rank": 7}),
]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize(("kind", "sizes"), CASES, ids=str)
def test_matches_the_reference(isa: str, kind: type[Made], sizes: dict[str, Any], lengths: list[int]) -> None:
    made = kind(**sizes)
    inputs = made.inputs(lengths)
    wanted = made.reference(*inputs)
    assert np.abs(made(*inputs) - wanted).max() < 2e-6 * max(1, np.abs(wanted).max())


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(("kind", "sizes"), CASES, ids=str)
def test_companions_do_not_matter(isa: str, kind: type[Made], sizes: dict[str, Any], threads: int) -> None:
    made, alone = kind(**sizes, threads=threads), kind(**sizes)
    inputs = made.inputs([3, 8, 2])
    rows, together = 13, made(*inputs)
    own = [part[len(part) // rows * 3 : len(part) // rows * 11] if len(part) % rows == 0 else part for part in inputs]
    own[3 if kind is Convolution else 4] = starts([8])
    assert same_bits(alone(*own), together[3:11])


@pytest.mark.skipif(LIBRARY == "cpu", reason="compares another library with the CPU's")
@pytest.mark.parametrize(("kind", "sizes"), CASES, ids=str)
def test_the_bits_of_the_cpu(kind: type[Made], sizes: dict[str, Any]) -> None:
    made = kind(**sizes)
    inputs = made.inputs([8, 5])
    assert same_bits(made(*inputs), kind(**sizes, library="cpu")(*inputs))


@pytest.mark.parametrize(
    ("kind", "sizes", "at", "shape", "message"),
    [
        (Convolution, CASES[0][1], 1, (4, 47), "kernels has 47 columns, expected 6 x a divisor of 256"),
        (Convolution, CASES[0][1], 2, (5, 256), "base has 5 rows, and attributes ask for 6"),
        (Convolution, CASES[0][1], 2, (6, 255), r"base has shape \[6, 255\], expected \[\*, 256\]"),
        (Edges, CASES[3][1], 2, (31, 32), r"before has shape \[31, 32\], expected \[32, 32\]"),
        (Edges, CASES[3][1], 5, (4, 31), r"gate has shape \[4, 31\], expected \[4, 32\]"),
    ],
)
def test_shapes(kind: type[Made], sizes: dict[str, Any], at: int, shape: tuple[int, ...], message: str) -> None:
    made = kind(**sizes)
    inputs = list(made.inputs([4]))
    inputs[at] = np.zeros(shape, np.float32)
    with pytest.raises(Exception, match=message):
        made(*inputs)


@pytest.mark.parametrize(("kind", "sizes"), [CASES[0], CASES[3]], ids=str)
def test_bounds_of_blocks(kind: type[Made], sizes: dict[str, Any]) -> None:
    made = kind(**sizes)
    inputs = list(made.inputs([4]))
    inputs[3 if kind is Convolution else 4] = np.array([0, 3], np.int32)
    with pytest.raises(Exception, match="cu_seqlens ends at 3, but there are 4 rows"):
        made(*inputs)


def test_attributes() -> None:
    for name, attributes, message in (
        ("BlockConvolution", {"first": -1, "taps": 2}, "attributes first and taps are -1 and 2"),
        ("CandidateEdges", {"drafting": 2}, "attribute drafting is 2, expected 0 or 1"),
    ):
        inputs = (Convolution(1, 1, 1) if name == "BlockConvolution" else Edges(1, 1)).inputs([1])
        with pytest.raises(Exception, match=message):
            Operator(name, inputs, [np.float32], attributes)
