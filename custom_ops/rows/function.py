"""LastRows and PreviousRows in standard ONNX operators."""

from trigraph.custom_ops.scripting import INT32, INT64, Tensor, body, op


@body
def cut(cu_seqlens: Tensor, past_lens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """cu_seqlens and past_lens of a step with only the last row of each sequence, and where those rows are."""
    last = cu_seqlens[1:] - 1
    single = op.Cast(op.Range(0, op.Size(cu_seqlens), 1), to=INT32)
    return single, past_lens + last - cu_seqlens[:-1], last


@body
def last_rows(cu_seqlens: Tensor, past_lens: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    single, positions, last = cut(cu_seqlens, past_lens)
    rows = op.Gather(x, last)
    return single, positions, rows


@body
def last_of_both(
    cu_seqlens: Tensor, past_lens: Tensor, x: Tensor, also: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    single, positions, last = cut(cu_seqlens, past_lens)
    rows = op.Gather(x, last)
    others = op.Gather(also, last)
    return single, positions, rows, others


@body
def previous_rows(x: Tensor, before: Tensor, cu_seqlens: Tensor) -> Tensor:
    both = op.Concat(before, x, axis=0)  # row t of x is row S + t
    count = op.Shape(before, end=1)
    first = op.Squeeze(count) - 1
    source = op.Range(first, first + op.Squeeze(op.Shape(x, end=1)), 1)
    starts = op.Cast(cu_seqlens[:-1], to=INT64)
    source = op.ScatterElements(source, starts, op.Range(0, op.Squeeze(count), 1), axis=0)
    return op.Gather(both, source)
