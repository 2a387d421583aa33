"""GatedDeltaNet in standard ONNX operators: all sequences side by side, token after token; formulas as in reference.py.

A timeline is what a sequence reads in a step, in order: stored rows, then its own. Timelines of S sequences are padded
to one length, [length, S, ...]; what stands past the end of one is never looked at.
"""

from onnxscript import graph

from trigraph.custom_ops.scripting import FLOAT, INT64, Tensor, body, op, row_positions


@body
def timeline(stored: Tensor, kept: Tensor, own: Tensor, starts: Tensor, length: Tensor) -> Tensor:
    """The first `kept` [S] of the rows stored [S, R, W], then own [T, W] from row `starts` [S] on: [length, S, W]."""
    limit = op.Shape(stored, start=1, end=2)
    base = op.Range(0, op.Squeeze(op.Shape(kept)), 1) * limit
    all_rows = op.Concat(op.Reshape(stored, op.Concat([-1], op.Shape(own, start=1), axis=0)), own, axis=0)
    step = op.Unsqueeze(op.Range(0, op.Squeeze(length), 1), [1])
    behind = op.Size(base) * limit + starts - kept
    return op.Gather(all_rows, op.Min(op.Where(step < kept, base, behind) + step, op.Shape(all_rows, end=1) - 1))


@body
def at(timelines: Tensor, step: Tensor, sequence: Tensor) -> Tensor:
    """Rows of timelines [length, S, ...] at a step of a sequence each."""
    return op.GatherND(timelines, op.Concat(op.Unsqueeze(step, [-1]), op.Unsqueeze(sequence, [-1]), axis=-1))


@body
def pending(own: Tensor, starts: Tensor, counts: Tensor, otherwise: Tensor) -> Tensor:
    """The first `counts` [S] rows from `starts` [S] on of own [T, W]; otherwise [S, K, W] past them."""
    number = op.Range(0, op.Squeeze(op.Shape(otherwise, start=1, end=2)), 1)
    rows = op.Min(op.Unsqueeze(starts, [1]) + number, op.Shape(own, end=1) - 1)
    return op.Where(op.Unsqueeze(number < op.Unsqueeze(counts, [1]), [2]), op.Gather(own, rows), otherwise)


@body
def unit(x: Tensor, eps: float) -> Tensor:
    """Vectors of length 1 along the last axis."""
    return x / op.Sqrt(op.ReduceSumSquare(x, [-1]) + eps)


@body
def convolve(columns: Tensor, conv: Tensor) -> Tensor:
    """Causal depthwise convolution and SiLU: columns [3 + L, S, C], conv [C, 4] -> [L, S, C]."""
    taps = op.Transpose(conv, perm=[1, 0])
    x = columns[:-3] * taps[0] + columns[1:-2] * taps[1] + columns[2:-1] * taps[2] + columns[3:] * taps[3]
    return x * op.Sigmoid(x)


@body
def delta_rule(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor]:
    """State [S, v, D, D], q, k, v [L, S, v, D], decay and beta [L, S, v] -> state after `kept` [S] tokens, outputs."""
    committing = op.Unsqueeze(op.Range(0, op.Squeeze(op.Shape(q, end=1)), 1), [1]) < kept

    @graph()
    def token(past, kept_past, q_t, k_t, v_t, decay_t, beta_t, keep):  # type: ignore[no-untyped-def]
        decayed = past * op.Unsqueeze(decay_t, [2, 3])
        error = op.Unsqueeze(v_t, [2]) - op.MatMul(op.Unsqueeze(k_t, [2]), decayed)
        after = decayed + op.Unsqueeze(k_t, [3]) * (error * op.Unsqueeze(beta_t, [2, 3]))
        out_t = op.Squeeze(op.MatMul(op.Unsqueeze(q_t, [2]), after), [2])
        return after, op.Where(op.Unsqueeze(keep, [1, 2, 3]), after, kept_past), out_t

    _, committed, out = op.Scan(state, state, q, k, v, decay, beta, committing, body=token, num_scan_inputs=6)
    return committed, out


@body
def gated_delta_net(
    qkv: Tensor, z: Tensor, alpha: Tensor, beta: Tensor, conv: Tensor, dt_bias: Tensor, a: Tensor, norm: Tensor,
    past_state: Tensor, past_window: Tensor, past_gates: Tensor,
    cu_seqlens: Tensor, past_lens: Tensor, accepted: Tensor, slots_in: Tensor, slots_out: Tensor,
    k_heads: int, eps: float, tiled: int, commit: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    sequence, number, _ = row_positions(cu_seqlens, past_lens)
    cu = op.Cast(cu_seqlens, to=INT64)
    starts, own = cu[:-1], cu[1:] - cu[:-1]
    old = op.Cast(accepted, to=INT64)
    kept = old + own * commit
    steps = op.Reshape(op.ReduceMax(old + own), [1])

    fresh = op.Unsqueeze(past_lens == 0, [1, 2])
    window = op.Where(fresh, 0.0, op.Gather(past_window, slots_in))
    state = op.Where(op.Unsqueeze(fresh, [3]), 0.0, op.Gather(past_state, slots_in))
    columns = timeline(window, old + 3, qkv, starts, steps + 3)
    own_gates = op.Concat(op.Softplus(alpha + dt_bias) * a, op.Sigmoid(beta), axis=1)
    gates = timeline(op.Gather(past_gates, slots_in), old, own_gates, starts, steps)
    log_decay, betas = op.Split(gates, num_outputs=2, axis=-1)

    width, v_heads = op.Shape(norm), op.Shape(dt_bias)
    mixed = op.Reshape(convolve(columns, conv), op.Concat([0, 0, -1], width, axis=0))
    groups = op.Concat(op.Reshape(k_heads, [1]), op.Reshape(k_heads, [1]), v_heads, axis=0)
    q, k, v = op.Split(mixed, groups, axis=2)
    head = op.Range(0, op.Squeeze(v_heads), 1)
    k_head = op.Where(op.Cast(tiled, to=9), head % k_heads, head / (v_heads / k_heads))
    q = op.Gather(unit(q, eps) / op.Sqrt(op.Cast(width, to=FLOAT)), k_head, axis=2)
    k = op.Gather(unit(k, eps), k_head, axis=2)
    committed, out = delta_rule(state, q, k, v, op.Exp(log_decay), betas, kept)

    mine = op.RMSNormalization(at(out, number + op.Gather(old, sequence), sequence), norm, axis=-1, epsilon=eps)
    y = op.Reshape(mine, op.Shape(z)) * z * op.Sigmoid(z)

    count = own * (1 - commit)  # tokens left pending
    last_three = op.Unsqueeze(kept, [1]) + op.Range(0, 3, 1)
    which = op.Expand(op.Unsqueeze(op.Range(0, op.Squeeze(op.Shape(kept)), 1), [1]), op.Shape(last_three))
    untouched = op.Gather(past_window, slots_out)[:, 3:]
    new_window = op.Concat(at(columns, last_three, which), pending(qkv, starts, count, untouched), axis=1)
    no_token = op.Concat(op.Expand(0.0, v_heads), op.Expand(-1.0, v_heads), axis=0)  # of beta -1
    new_gates = pending(own_gates, starts, count, op.Expand(no_token, op.Shape(op.Gather(past_gates, slots_out))))
    slots = op.Unsqueeze(op.Cast(slots_out, to=INT64), [1])
    present_state = op.ScatterND(past_state, slots, committed)
    present_window = op.ScatterND(past_window, slots, new_window)
    present_gates = op.ScatterND(past_gates, slots, new_gates)
    return y, present_state, present_window, present_gates
