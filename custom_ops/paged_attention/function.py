"""PagedKVWrite and PagedAttention in standard ONNX operators; shapes and positions as in reference.py."""

from trigraph.custom_ops.scripting import DOUBLE, FLOAT, INT64, Tensor, body, op, row_positions


@body
def slow_share(rope_dims: int, rope_ramp_start: int, rope_ramp_end: int) -> Tensor:
    """How much of the lower frequency each rotary pair has: float64 [rope_dims / 2]."""
    length = op.Max(op.Cast(rope_ramp_end - rope_ramp_start, to=DOUBLE), op.Cast(0.001, to=DOUBLE))
    share = op.Cast(op.Range(0, rope_dims / 2, 1) - rope_ramp_start, to=DOUBLE) / length
    return op.Clip(share, op.Cast(0.0, to=DOUBLE), op.Cast(1.0, to=DOUBLE))


@body
def norm_rotate(
    x: Tensor, weight: Tensor, position: Tensor,
    rope_dims: int, rope_theta: float, eps: float, rope_factor: float, rope_ramp_start: int, rope_ramp_end: int,
    rope_magnitude: float,
) -> Tensor:  # fmt: skip
    """RMS norm over the last axis of x [T, heads, D], then turned by positions [T]."""
    half = op.Reshape(rope_dims / 2, [1])
    # Float32 angles would be off by hundredths at the end of a long sequence.
    exponent = op.Cast(op.Range(0, rope_dims, 2), to=DOUBLE) / op.Cast(-rope_dims, to=DOUBLE)
    frequency = op.Pow(op.Cast(rope_theta, to=DOUBLE), exponent)
    slow = slow_share(rope_dims, rope_ramp_start, rope_ramp_end)
    frequency = frequency * (1.0 - slow + slow / op.Cast(rope_factor, to=DOUBLE))
    angle = op.Cast(op.Unsqueeze(position, [1, 2]), to=DOUBLE) * frequency
    magnitude = op.Cast(rope_magnitude, to=DOUBLE)
    cosine, sine = op.Cast(op.Cos(angle) * magnitude, to=FLOAT), op.Cast(op.Sin(angle) * magnitude, to=FLOAT)
    normed = op.RMSNormalization(x, weight, axis=-1, epsilon=eps)
    sizes = op.Concat(half, half, op.Shape(weight) - 2 * half, axis=0)
    a, b, rest = op.Split(normed, sizes, axis=-1)
    return op.Concat(a * cosine - b * sine, b * cosine + a * sine, rest, axis=-1)


@body
def places(sequence: Tensor, position: Tensor, page_table: Tensor, page_size: Tensor) -> Tensor:
    """Page and offset of each position [T] of its sequence: int64 [T, 2]."""
    entry = op.Concat(op.Unsqueeze(sequence, [1]), op.Unsqueeze(position / page_size, [1]), axis=1)
    page = op.Cast(op.GatherND(page_table, entry), to=INT64)
    return op.Concat(op.Unsqueeze(page, [1]), op.Unsqueeze(position % page_size, [1]), axis=1)


@body
def paged_kv_write(
    k: Tensor, v: Tensor, k_norm: Tensor, past_key: Tensor, past_value: Tensor,
    cu_seqlens: Tensor, past_lens: Tensor, page_table: Tensor,
    rope_dims: int, rope_theta: float, eps: float, rope_factor: float = 1.0, rope_ramp_start: int = 0,
    rope_ramp_end: int = 0, rope_magnitude: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    sequence, _, position = row_positions(cu_seqlens, past_lens)
    shape = op.Concat(op.Shape(sequence), op.Shape(past_key, start=2), axis=0)
    key = norm_rotate(
        op.Reshape(k, shape), k_norm, position,
        rope_dims, rope_theta, eps, rope_factor, rope_ramp_start, rope_ramp_end, rope_magnitude,
    )  # fmt: skip
    entry = places(sequence, position, page_table, op.Shape(past_key, start=1, end=2))
    present_key = op.ScatterND(past_key, entry, op.CastLike(key, past_key))
    present_value = op.ScatterND(past_value, entry, op.CastLike(op.Reshape(v, shape), past_value))
    return present_key, present_value


@body
def sequence_ends(cu_seqlens: Tensor, past_lens: Tensor) -> Tensor:
    """Positions of each sequence after the step: int64 [S]."""
    cu = op.Cast(cu_seqlens, to=INT64)
    return op.Cast(past_lens, to=INT64) + cu[1:] - cu[:-1]


@body
def entries(cache: Tensor, page_table: Tensor, ends: Tensor) -> Tensor:
    """Keys or values of each sequence up to the longest: float32 [S, positions, KV, D], zeros behind the end of one:
    what a page holds there may be NaN, which no weight of zero would hide."""
    page_size = op.Shape(cache, start=1, end=2)
    pages = (op.ReduceMax(ends) + page_size - 1) / page_size
    first = op.Range(0, op.Squeeze(pages), 1) * page_size
    # Entries of the table past the end of a sequence mean nothing.
    table = op.Where(first < op.Unsqueeze(ends, [1]), op.Cast(page_table, to=INT64)[:, : op.Squeeze(pages)], 0)
    stored = op.Reshape(op.Gather(cache, table), op.Concat(op.Shape(ends), [-1], op.Shape(cache, start=2), axis=0))
    position = op.Range(0, op.Squeeze(op.Shape(stored, start=1, end=2)), 1)
    return op.Where(op.Unsqueeze(position < op.Unsqueeze(ends, [1]), [2, 3]), op.Cast(stored, to=FLOAT), 0.0)


@body
def attend(q: Tensor, key: Tensor, value: Tensor, position: Tensor) -> Tensor:
    """softmax(q k / sqrt(D)) v: q [S, L, H, D] at positions [S, L], key and value [S, P, KV, D] -> [S, L, H * D]."""
    dims = op.Shape(q, end=2)
    kv_heads, width = op.Shape(key, start=2, end=3), op.Shape(key, start=3)
    grouped = op.Reshape(q, op.Concat(dims, kv_heads, [-1], width, axis=0))
    scores = op.MatMul(
        op.Reshape(op.Transpose(grouped, perm=[0, 2, 3, 1, 4]), op.Concat([0], kv_heads, [-1], width, axis=0)),
        op.Transpose(key, perm=[0, 2, 3, 1]),
    ) / op.Sqrt(op.Cast(width, to=FLOAT))
    # [S, KV, heads of a kv head, L, P]
    shape = op.Concat([0, 0, -1], op.Shape(q, start=1, end=2), op.Shape(key, start=1, end=2), axis=0)
    seen = op.Range(0, op.Squeeze(op.Shape(key, start=1, end=2)), 1) <= op.Unsqueeze(position, [1, 2, 4])
    weights = op.Softmax(op.Where(seen, op.Reshape(scores, shape), -1e30), axis=-1)
    mixed = op.MatMul(op.Reshape(weights, op.Shape(scores)), op.Transpose(value, perm=[0, 2, 1, 3]))
    by_head = op.Reshape(mixed, op.Concat([0, 0, -1], op.Shape(q, start=1, end=2), width, axis=0))
    return op.Reshape(op.Transpose(by_head, perm=[0, 3, 1, 2, 4]), op.Concat(dims, [-1], axis=0))


@body
def attend_rows(
    q: Tensor, keys: Tensor, values: Tensor, sequence: Tensor, number: Tensor, position: Tensor, cu_seqlens: Tensor
) -> Tensor:
    """Attention of rows q [T, H, D], each at its position of its sequence: [T, H * D]."""
    cu = op.Cast(cu_seqlens, to=INT64)
    # Rows of every sequence side by side, as many as the longest has; what is past the end of one is dropped again.
    longest = op.ReduceMax(cu[1:] - cu[:-1])
    rows = op.Min(op.Unsqueeze(cu[:-1], [1]) + op.Range(0, op.Squeeze(longest), 1), op.Shape(sequence) - 1)
    mixed = attend(op.Gather(q, rows), keys, values, op.Gather(position, rows))
    return op.GatherND(mixed, op.Concat(op.Unsqueeze(sequence, [1]), op.Unsqueeze(number, [1]), axis=1))


@body
def paged_attention(
    q_gate: Tensor, q_norm: Tensor, key: Tensor, value: Tensor,
    cu_seqlens: Tensor, past_lens: Tensor, page_table: Tensor,
    rope_dims: int, rope_theta: float, eps: float, rope_factor: float = 1.0, rope_ramp_start: int = 0,
    rope_ramp_end: int = 0, rope_magnitude: float = 1.0,
) -> Tensor:  # fmt: skip
    sequence, number, position = row_positions(cu_seqlens, past_lens)
    heads = op.Reshape(q_gate, op.Concat(op.Shape(q_gate, end=1), [-1], 2 * op.Shape(q_norm), axis=0))
    q, gate = op.Split(heads, num_outputs=2, axis=-1)
    q = norm_rotate(
        q, q_norm, position, rope_dims, rope_theta, eps, rope_factor, rope_ramp_start, rope_ramp_end, rope_magnitude
    )
    ends = sequence_ends(cu_seqlens, past_lens)
    keys, values = entries(key, page_table, ends), entries(value, page_table, ends)
    y = attend_rows(q, keys, values, sequence, number, position, cu_seqlens)
    return y * op.Sigmoid(op.Reshape(gate, op.Shape(y)))
