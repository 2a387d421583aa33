"""The law of an operator on rows: a row's bits depend on that row alone, and are the same on every instruction set."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.operators.run import LIBRARY, THREADS, Operator, same_bits

Array = NDArray[Any]


@contextmanager
def portable_kernels() -> Iterator[None]:
    """Sessions of the CPU library that are made in the block run the portable set, which defines the bits."""
    before = os.environ.get("TRIGRAPH_ISA")
    os.environ["TRIGRAPH_ISA"] = "portable"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("TRIGRAPH_ISA", None)
        else:
            os.environ["TRIGRAPH_ISA"] = before


def run_rows(
    op_type: str,
    rows: Sequence[Array],
    constants: Sequence[Any],
    order: Callable[[list[Any], list[Any]], list[Any]],
    outputs: Mapping[int, tuple[Any, int | None]],
    attributes: Mapping[str, Any],
) -> list[Array]:
    """Run an operator on `rows` (tensors with a row for each token) and `constants`, and check the law.

    `order(rows, constants)` are the inputs in order. `outputs` maps each output to its type and width; None is one
    value a row. Returns the outputs, which 1 and 2 threads, other cuts and the portable set have given as well.
    """
    inputs = order(list(rows), list(constants))
    types = [dtype for dtype, _ in outputs.values()]

    def run(threads: int, part: slice, library: str = LIBRARY) -> list[Array]:
        operator = Operator(op_type, inputs, types, attributes, threads=threads, library=library)
        taken = [np.ascontiguousarray(tensor[part]) for tensor in rows]
        shapes = [(len(taken[0]),) if width is None else (len(taken[0]), width) for _, width in outputs.values()]
        return operator(*order(taken, list(constants)), output_shapes=shapes)

    whole, count = run(1, slice(None)), len(rows[0])
    with portable_kernels():
        expect(run(1, slice(None), "cpu"), whole, "portable")
    for threads in THREADS[1:]:
        expect(run(threads, slice(None)), whole, f"{threads} threads")
    for part in (slice(0, 1), slice(count - 1, count), slice(count // 3, 2 * count // 3 + 1)):
        expect(run(1, part), [output[part] for output in whole], f"rows {part}")
    return whole


def expect(found: Sequence[Array], wanted: Sequence[Array], what: str) -> None:
    for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert same_bits(one, np.ascontiguousarray(other)), f"output {index}: {what}"
