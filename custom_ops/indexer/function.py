"""PagedIndexWrite and PagedSelect in standard ONNX operators; shapes as in reference.py."""

from trigraph.custom_ops.paged_attention.function import norm_rotate, places, sequence_ends, stored_entries
from trigraph.custom_ops.scripting import FLOAT, INT32, INT64, Tensor, body, op, row_positions


@body
def paged_index_write(
    k: Tensor, k_norm: Tensor, past_index: Tensor, cu_seqlens: Tensor, past_lens: Tensor, page_table: Tensor,
    group: int, rope_dims: int, rope_theta: float, eps: float, rope_factor: float = 1.0, rope_ramp_start: int = 0,
    rope_ramp_end: int = 0, rope_magnitude: float = 1.0,
) -> Tensor:  # fmt: skip
    """Raw keys of all rows first; then of rows that end a group, what the index holds of it."""
    sequence, _, position = row_positions(cu_seqlens, past_lens)
    page_size = op.Shape(past_index, start=1, end=2)
    own = places(sequence, position, page_table, page_size)
    raw = op.ScatterND(past_index, own, op.CastLike(k, past_index))
    first = position - position % group
    ends = position % group == group - 1
    earlier = op.Min(op.Unsqueeze(first, [1]) + op.Range(0, group - 1, 1), op.Unsqueeze(position, [1]))
    flat = op.Reshape(earlier, [-1])
    of = op.Reshape(op.Expand(op.Unsqueeze(sequence, [1]), op.Shape(earlier)), [-1])
    stored = op.GatherND(raw, places(of, flat, page_table, page_size))
    shape = op.Concat(op.Shape(earlier), [-1], axis=0)
    pooled = op.ReduceSum(op.Reshape(op.Cast(stored, to=FLOAT), shape), [1], keepdims=0) + k
    mean = op.Unsqueeze(pooled / op.Cast(group, to=FLOAT), [1])
    turned = norm_rotate(
        mean, k_norm, op.Unsqueeze(first, [1]), rope_dims, rope_theta, eps, rope_factor, rope_ramp_start, rope_ramp_end,
        rope_magnitude,
    )  # fmt: skip
    entry = op.Where(op.Unsqueeze(ends, [1]), op.Squeeze(turned, [1]), k)
    return op.ScatterND(past_index, own, op.CastLike(entry, past_index))


@body
def paged_select(
    q: Tensor, q_norm: Tensor, index: Tensor, cu_seqlens: Tensor, past_lens: Tensor, page_table: Tensor,
    group: int, top: int, rope_dims: int, rope_theta: float, eps: float, rope_factor: float = 1.0,
    rope_ramp_start: int = 0, rope_ramp_end: int = 0, rope_magnitude: float = 1.0,
) -> Tensor:  # fmt: skip
    sequence, _, position = row_positions(cu_seqlens, past_lens)
    shape = op.Concat([0, -1], op.Shape(q_norm), axis=0)
    turned = norm_rotate(
        op.Reshape(q, shape), q_norm, op.Unsqueeze(position, [1]), rope_dims, rope_theta, eps, rope_factor,
        rope_ramp_start, rope_ramp_end, rope_magnitude,
    )  # fmt: skip
    found = op.Cast(stored_entries(index, page_table, sequence_ends(cu_seqlens, past_lens)), to=FLOAT)
    keys = op.Slice(found, op.Reshape(group - 1, [1]), [2147483647], [1], op.Reshape(group, [1]))  # [S, groups, D]
    groups = op.Range(0, op.Squeeze(op.Shape(keys, start=1, end=2)), 1)
    whole = groups < op.Unsqueeze((position + 1) / group, [1])  # [R, groups]
    scores = op.ReduceSum(op.Relu(op.MatMul(turned, op.Transpose(op.Gather(keys, sequence), perm=[0, 2, 1]))), [1])
    scores = op.Where(whole, op.Squeeze(scores, [1]), -1.0)
    padded = op.Pad(scores, op.Concat([0, 0, 0], op.Reshape(top, [1]), axis=0), -1.0)
    best, chosen = op.TopK(padded, op.Reshape(top, [1]), axis=1)
    none = op.Cast(2147483647, to=INT64)
    ascending, _ = op.TopK(op.Where(best < 0.0, none, chosen), op.Reshape(top, [1]), axis=1, largest=0)
    return op.Cast(op.Where(ascending == none, op.Cast(-1, to=INT64), ascending), to=INT32)
