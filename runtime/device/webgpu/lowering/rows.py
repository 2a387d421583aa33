"""Rows of a step, padded to four: MatMulNBits has one way for up to three rows and another one for more."""

from __future__ import annotations

from onnx import TensorProto

from trigraph.runtime.device.webgpu.lowering.builder import Builder

LEAST = 4
"""Rows of which each has the bits that it has among more."""


class Rows:
    """Rows of which there are as many as an input has; the last one stands in the place of missing ones."""

    def __init__(self, builder: Builder, counted: str, *, padded: bool) -> None:
        """`counted`: the input; `padded`: whether rows are missing where there are fewer than LEAST."""
        self._builder, self._counted, self._padded = builder, counted, padded

    @property
    def count(self) -> str:
        """int64 [1]: how many there are."""
        return str(self._builder.once((self, "count"), lambda: self._builder.op("Shape", self._counted, end=1)))

    @property
    def numbers(self) -> str:
        """int64 [padded count]: which row lies in each place."""
        b = self._builder

        def made() -> str:
            most = b.op("Max", self.count, b.ints(LEAST if self._padded else 0))
            places = b.op("Range", b.number(0), b.op("Squeeze", most, b.ints(0)), b.number(1))
            return b.op("Min", places, b.op("Sub", self.count, b.ints(1)))

        return str(b.once((self, "numbers"), made))

    @property
    def places(self) -> tuple[str, str]:
        """int64 [padded count]: the sequence of each row of a step, and the row's number in it."""
        b = self._builder

        def made() -> tuple[str, str]:
            starts, ends = starts_and_ends(b)
            rows, behind = b.op("Unsqueeze", self.numbers, b.ints(1)), b.op("Unsqueeze", ends, b.ints(0))
            past = b.op("Cast", b.op("GreaterOrEqual", rows, behind), to=TensorProto.INT64)
            sequences = b.op("ReduceSum", past, b.ints(1), keepdims=0)
            return sequences, b.op("Sub", self.numbers, b.op("Gather", starts, sequences))

        sequences, places = b.once((self, "places"), made)
        return sequences, places

    def pad(self, rows: str, out: str | None = None) -> str:
        """Rows, with the missing ones."""
        if not self._padded:
            return rows if out is None else self._builder.op("Identity", rows, out=out)
        return self._builder.op("Gather", rows, self.numbers, out=out)

    def cut(self, rows: str, out: str | None = None) -> str:
        """Rows, without the missing ones."""
        if not self._padded:
            return rows if out is None else self._builder.op("Identity", rows, out=out)
        return self._builder.op("Slice", rows, self._builder.ints(0), self.count, self._builder.ints(0), out=out)


def as_int64(builder: Builder, value: str) -> str:
    """An input of int32 as int64, once for a graph."""
    return str(builder.once(value, lambda: builder.op("Cast", value, to=TensorProto.INT64)))


def starts_and_ends(builder: Builder) -> tuple[str, str]:
    """int64 [S]: the first row of each sequence, and the one behind its last."""
    b = builder

    def made() -> tuple[str, str]:
        bounds, zero = as_int64(b, "cu_seqlens"), b.ints(0)
        return b.op("Slice", bounds, zero, b.ints(-1), zero), b.op("Slice", bounds, b.ints(1), b.ints(1 << 31), zero)

    starts, ends = b.once("starts and ends", made)
    return starts, ends
