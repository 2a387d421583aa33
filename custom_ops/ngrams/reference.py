"""What NgramRows and NgramMix compute, in NumPy: integers, and float64, of which a kernel differs by its rounding."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trigraph.custom_ops.gated_delta_net.reference import Step

Floats = NDArray[np.float32]
Wide = NDArray[np.float64]
Ints = NDArray[np.int64]

TAPS = 4


def ngram_rows(
    input_ids: Ints,
    previous_ids: Ints,
    cu_seqlens: NDArray[np.int32],
    multipliers: Ints,
    moduli: Ints,
    offsets: Ints,
    *,
    eos: int,
) -> Ints:
    """Rows of a table for the n-grams that end at each of T tokens: [T x rows of a token].

    A hash mixes the last 2, 3, ... tokens, each times its multiplier (the last token's first), by exclusive or; rows of
    each length of n-gram are the hash modulo `moduli` plus `offsets`. Tokens from the nearest `eos` before a token back
    read as `eos`. `previous_ids` [S, n - 1] are the tokens before each sequence's first, in order.
    """
    heads, rows = len(moduli) // (len(multipliers) - 1), []
    for s, start in enumerate(cu_seqlens[:-1]):
        text = [*map(int, previous_ids[s]), *map(int, input_ids[start : cu_seqlens[s + 1]])]
        for at in range(len(multipliers) - 1, len(text)):
            mixed, cut = text[at] * int(multipliers[0]), False
            for back in range(1, len(multipliers)):
                cut = cut or text[at - back] == eos
                mixed ^= (eos if cut else text[at - back]) * int(multipliers[back])
                own = slice((back - 1) * heads, back * heads)
                rows += [mixed % int(m) + int(o) for m, o in zip(moduli[own], offsets[own], strict=True)]
    return np.array(rows, np.int64)


@dataclass(frozen=True)
class Weights:
    """A norm [streams x D], and taps [streams x D, 4], the last one for the current token."""

    conv_norm: Floats
    conv: Floats


def ngram_mix(
    x: Floats,
    key: Floats,
    query: Floats,
    value: Floats,
    weights: Weights,
    past_window: Floats,
    step: Step,
    *,
    streams: int,
    dilation: int,
    commit: bool,
    eps: float,
) -> tuple[Floats, Floats]:
    """Streams x [T, streams x D] and what rows of a table add to them; the new window.

    `key` of the rows and `query` of the streams are normed, both like x; `value` [T, D] is of the rows. Of each stream:
    s = key . query / sqrt(D); v = sigmoid(sign(s) sqrt(max(|s|, 1e-6))) value; u = norm(v); x + v + silu(convolution of
    u over time, whose taps lie `dilation` tokens apart). The window of a slot is [3 dilation + K, streams x D]: the
    last committed columns u, then those of the pending tokens; commits and slots as in GatedDeltaNet.
    """
    tokens, hidden = value.shape
    wide = x.reshape(tokens, streams, hidden).astype(np.float64)
    score = (key.astype(np.float64) * query).reshape(wide.shape).sum(axis=-1) / np.sqrt(hidden)
    gate = 1 / (1 + np.exp(-np.sign(score) * np.sqrt(np.maximum(np.abs(score), 1e-6))))
    gated = gate[..., None] * value[:, None]
    columns = _norm(gated, weights.conv_norm, eps).reshape(tokens, -1)
    y, present, history = (wide + gated).reshape(tokens, -1), past_window.copy(), (TAPS - 1) * dilation
    for s, (slot_in, slot_out) in enumerate(zip(step.slots_in, step.slots_out, strict=True)):
        rows, accepted = slice(int(step.cu_seqlens[s]), int(step.cu_seqlens[s + 1])), int(step.accepted[s])
        stored = past_window[slot_in, : history + accepted].astype(np.float64)
        if step.past_lens[s] == 0:
            stored = np.zeros_like(stored)
        line, own = np.concatenate([stored, columns[rows]]), rows.stop - rows.start
        sums = sum(line[accepted + j * dilation :][:own] * weights.conv[:, j] for j in range(TAPS))
        y[rows] += sums / (1 + np.exp(-sums))
        kept = accepted + own if commit else accepted
        present[slot_out, :history] = line[kept : kept + history]
        if not commit:
            present[slot_out, history : history + own] = columns[rows]
    return y.astype(np.float32), present


def _norm(x: Wide, weight: Floats, eps: float) -> Wide:
    """The RMS norm of each stream of x [T, streams, D]."""
    mean_square: Wide = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + eps) * weight.reshape(x.shape[1:])
