"""NgramRows and NgramMix in standard ONNX operators; formulas as in reference.py."""

from onnxscript import graph

from trigraph.custom_ops.gated_delta_net.function import at, pending, timeline
from trigraph.custom_ops.scripting import FLOAT, INT64, Tensor, body, op, row_positions
from trigraph.custom_ops.streams.function import normed, of_streams


@body
def texts(input_ids: Tensor, previous_ids: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """All sequences end to end, each behind its B previous tokens, and where in them the tokens of the step are."""
    cu = op.Cast(cu_seqlens, to=INT64)
    before = op.Shape(previous_ids, start=1)
    sequence, number, _ = row_positions(cu_seqlens, cu_seqlens[:-1])
    rows = op.Gather(cu, sequence) + number + (sequence + 1) * before
    starts = cu[:-1] + op.Range(0, op.Squeeze(op.Shape(previous_ids, end=1)), 1) * before
    fronts = op.Unsqueeze(starts, [1]) + op.Range(0, op.Squeeze(before), 1)
    places = op.Concat(op.Reshape(fronts, [-1]), rows, axis=0)
    tokens = op.Concat(op.Reshape(previous_ids, [-1]), input_ids, axis=0)
    text = op.ScatterElements(tokens, places, tokens, axis=0)
    return text, rows


@body
def ngram_rows(
    input_ids: Tensor, previous_ids: Tensor, cu_seqlens: Tensor, multipliers: Tensor, moduli: Tensor, offsets: Tensor,
    eos: int,
) -> Tensor:  # fmt: skip
    text, rows = texts(input_ids, previous_ids, cu_seqlens)
    before = op.Shape(previous_ids, start=1)
    steps = op.Range(0, op.Squeeze(before) + 1, 1)
    tokens = op.Gather(text, op.Unsqueeze(rows, [0]) - op.Unsqueeze(steps, [1]))  # [1 + B, T], the last one first
    ended = op.CumSum(op.Cast(tokens[1:] == eos, to=INT64), 0) > 0
    products = op.Concat(tokens[:1], op.Where(ended, eos, tokens[1:]), axis=0) * op.Unsqueeze(multipliers, [1])

    @graph()
    def mix(mixed, product):  # type: ignore[no-untyped-def]
        longer = op.BitwiseXor(mixed, product)
        return longer, op.Identity(longer)

    _, hashes = op.Scan(op.Squeeze(products[:1], [0]), products[1:], body=mix, num_scan_inputs=1)  # [B, T]
    shape = op.Concat(before, [1], [-1], axis=0)
    found = op.Mod(op.Unsqueeze(hashes, [2]), op.Reshape(moduli, shape)) + op.Reshape(offsets, shape)
    return op.Reshape(op.Transpose(found, perm=[1, 0, 2]), [-1])


@body
def gates(key: Tensor, query: Tensor, streams: int) -> Tensor:
    """How rows meet the streams: [T, streams, 1]."""
    width = op.Cast(op.Shape(key, start=1) / streams, to=FLOAT)
    score = op.ReduceSum(of_streams(key * query, streams), [2]) / op.Sqrt(width)
    return op.Sigmoid(op.Sign(score) * op.Sqrt(op.Max(op.Abs(score), 1e-6)))


@body
def ngram_mix(
    x: Tensor, key: Tensor, query: Tensor, value: Tensor, conv_norm: Tensor, conv: Tensor, past_window: Tensor,
    cu_seqlens: Tensor, past_lens: Tensor, accepted: Tensor, slots_in: Tensor, slots_out: Tensor,
    streams: int, dilation: int, commit: int, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    gated = gates(key, query, streams) * op.Unsqueeze(value, [1])
    columns = normed(gated, conv_norm, streams, eps)
    sequence, number, _ = row_positions(cu_seqlens, past_lens)
    cu = op.Cast(cu_seqlens, to=INT64)
    starts, own = cu[:-1], cu[1:] - cu[:-1]
    history, old = op.Reshape(dilation * 3, [1]), op.Cast(accepted, to=INT64)
    kept = old + own * commit
    window = op.Where(op.Unsqueeze(past_lens == 0, [1, 2]), 0.0, op.Gather(past_window, slots_in))
    line = timeline(window, old + history, columns, starts, op.Reshape(op.ReduceMax(old + own), [1]) + history)

    taps = op.Transpose(conv, perm=[1, 0])
    row = number + op.Gather(old, sequence)
    sums = (
        at(line, row, sequence) * taps[0]
        + at(line, row + dilation, sequence) * taps[1]
        + at(line, row + dilation * 2, sequence) * taps[2]
        + at(line, row + dilation * 3, sequence) * taps[3]
    )
    y = x + op.Reshape(gated, op.Shape(x)) + sums * op.Sigmoid(sums)

    last = op.Unsqueeze(kept, [1]) + op.Range(0, op.Squeeze(history), 1)
    which = op.Expand(op.Unsqueeze(op.Range(0, op.Squeeze(op.Shape(kept)), 1), [1]), op.Shape(last))
    untouched = op.Slice(op.Gather(past_window, slots_out), history, [2147483647], [1])
    rows = op.Concat(at(line, last, which), pending(columns, starts, own * (1 - commit), untouched), axis=1)
    slots = op.Unsqueeze(op.Cast(slots_out, to=INT64), [1])
    present_window = op.ScatterND(past_window, slots, rows)
    return y, present_window
