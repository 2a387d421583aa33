"""PagedAttention with groups in standard ONNX operators; shapes and positions as in reference.py."""

from trigraph.custom_ops.paged_attention.function import entries, queries, sequence_ends
from trigraph.custom_ops.scripting import FLOAT, INT32, Tensor, body, op, row_positions


@body
def seen_places(groups: Tensor, position: Tensor, count: Tensor, group: int) -> Tensor:
    """Which of `count` [1] places each row sees: those of its groups [R, top], and those behind the last whole one."""
    place = op.Range(0, op.Squeeze(count), 1)
    of_place = op.Cast(place / group, to=INT32)
    chosen = op.ReduceMax(op.Cast(op.Unsqueeze(groups, [2]) == of_place, to=INT32), [1], keepdims=0)  # [R, places]
    own = op.Unsqueeze(position, [1])
    behind = place >= (own + 1) / group * group
    return op.And(op.Or(chosen > 0, behind), place <= own)


@body
def attend_seen(q: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    """softmax(q k / sqrt(D)) v: q [R, H, D], key and value [R, P, KV, D], seen [R, P] -> [R, H * D]."""
    kv_heads, width = op.Shape(key, start=2, end=3), op.Shape(key, start=3)
    grouped = op.Reshape(q, op.Concat([0], kv_heads, [-1], width, axis=0))
    scores = op.MatMul(grouped, op.Transpose(key, perm=[0, 2, 3, 1])) / op.Sqrt(op.Cast(width, to=FLOAT))
    weights = op.Softmax(op.Where(op.Unsqueeze(seen, [1, 2]), scores, -1e30), axis=-1)
    return op.Reshape(op.MatMul(weights, op.Transpose(value, perm=[0, 2, 1, 3])), [0, -1])


@body
def selected_attention(
    q_gate: Tensor, q_norm: Tensor, key: Tensor, value: Tensor,
    cu_seqlens: Tensor, past_lens: Tensor, page_table: Tensor, positions: Tensor, groups: Tensor,
    group: int, rope_dims: int, rope_theta: float, eps: float, rope_factor: float = 1.0, rope_ramp_start: int = 0,
    rope_ramp_end: int = 0, rope_magnitude: float = 1.0,
) -> Tensor:  # fmt: skip
    """PagedAttention with groups; `positions` is absent."""
    sequence, _, place = row_positions(cu_seqlens, past_lens)
    q, gate = queries(
        q_gate, q_norm, op.Unsqueeze(place, [1]),
        rope_dims, rope_theta, eps, rope_factor, rope_ramp_start, rope_ramp_end, rope_magnitude,
    )  # fmt: skip
    ends = sequence_ends(cu_seqlens, past_lens)
    keys, values = entries(key, page_table, ends), entries(value, page_table, ends)
    seen = seen_places(groups, place, op.Shape(keys, start=1, end=2), group)
    y = attend_seen(q, op.Gather(keys, sequence), op.Gather(values, sequence), seen)
    return y * op.Sigmoid(op.Reshape(gate, op.Shape(y)))
