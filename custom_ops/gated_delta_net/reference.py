"""GatedDeltaNet in NumPy: which tokens a step commits and leaves pending, around the rule of rule.py."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trigraph.custom_ops.gated_delta_net.rule import convolve, delta_rule, sigmoid, silu, split_heads
from trigraph.models.errors import TrigraphError

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

NO_TOKEN = -1.0  # beta of a gates row that holds no token


@dataclass(frozen=True)
class Weights:
    """One layer's parameters; v value heads of dim D, C = 2 * k_heads * D + v * D channels."""

    conv: F32  # [C, 4], last tap = current token
    dt_bias: F32  # [v]
    a: F32  # [v], -exp(A_log)
    norm: F32  # [D]


@dataclass(frozen=True)
class State:
    """Every slot's recurrent state. K is the most tokens a verify may hold."""

    state: F32  # [slots, v, D, D]: S[i][j], i = key index, j = value index
    window: F32  # [slots, 3 + K, C]: the last three committed pre-conv columns, then the pending tokens' columns
    gates: F32  # [slots, K, 2 * v]: log-decay (v) and beta (v) of the pending tokens

    def copy(self) -> "State":
        return State(self.state.copy(), self.window.copy(), self.gates.copy())


@dataclass(frozen=True)
class Step:
    """Which sequences run: [S + 1] offsets into the rows, then [S] each."""

    cu_seqlens: I32
    past_lens: I32
    accepted: I32
    slots_in: I32
    slots_out: I32


def check(step: Step, past: State, rows: int, commit: bool) -> None:
    """Raises TrigraphError for a step that is an error."""
    slots, pending_max = past.gates.shape[:2]
    v_heads = past.state.shape[1]
    cu = step.cu_seqlens
    if cu[0] != 0 or cu[-1] != rows or (np.diff(cu) <= 0).any():
        raise TrigraphError(f"input cu_seqlens is {cu.tolist()}: it must rise from 0 to {rows}")
    readers = [int(slot) if past_len else None for slot, past_len in zip(step.slots_in, step.past_lens, strict=True)]
    for s, (past_len, accepted) in enumerate(zip(step.past_lens, step.accepted, strict=True)):
        slot_in, slot_out = int(step.slots_in[s]), int(step.slots_out[s])
        if past_len < 0:
            raise TrigraphError(f"input past_lens[{s}] is {past_len}: it must not be negative")
        if not (0 <= slot_in < slots and 0 <= slot_out < slots):
            raise TrigraphError(
                f"inputs slots_in[{s}], slots_out[{s}] are {slot_in}, {slot_out}: there are {slots} slots"
            )
        if not 0 <= accepted <= min(pending_max, past_len):
            raise TrigraphError(
                f"input accepted[{s}] is {accepted}: at most {min(pending_max, past_len)} tokens can be"
            )
        if (past.gates[slot_in, :accepted, v_heads:] < 0).any():
            raise TrigraphError(f"input accepted[{s}] is {accepted}: slot {slot_in} has fewer pending tokens")
        if not commit and cu[s + 1] - cu[s] > pending_max:
            raise TrigraphError(f"sequence {s} has {cu[s + 1] - cu[s]} tokens: a verify takes {pending_max}")
        if (step.slots_out[:s] == slot_out).any():
            raise TrigraphError(f"input slots_out[{s}] is {slot_out}, as another sequence's")
        if any(reader == slot_out for other, reader in enumerate(readers) if other != s):
            raise TrigraphError(f"input slots_out[{s}] is {slot_out}: another sequence reads that slot")


def gated_delta_net(
    qkv: F32,
    z: F32,
    alpha: F32,
    beta: F32,
    weights: Weights,
    past: State,
    step: Step,
    *,
    k_heads: int,
    eps: float,
    tiled: bool,
    commit: bool,
    sigmoid_gate: bool = False,
) -> tuple[F32, State]:
    """One step: qkv [T, C] before the convolution, z [T, v * D], alpha, beta [T, v] before their gates -> y [T, v * D].

    Each sequence reads slots_in (zeros when past_lens is 0), applies its `accepted` pending tokens, writes the
    committed state to slots_out and runs its own tokens from there. A verify (commit False) leaves its own tokens
    pending; a prefill (commit True) commits them. Slots that are not written stay as they are. Value head h uses key
    head h % k_heads when tiled, else h // (v / k_heads); outputs are gated by silu(z), or by sigmoid(z). Raises
    TrigraphError for a step that cannot be.
    """
    check(step, past, len(qkv), commit)
    v_heads, dim = past.state.shape[1:3]
    present = past.copy()
    y = np.zeros_like(z)
    own_decay = np.logaddexp(0, alpha.astype(np.float64) + weights.dt_bias) * weights.a
    own_beta = sigmoid(beta.astype(np.float64))

    for s in range(len(step.past_lens)):
        rows = slice(int(step.cu_seqlens[s]), int(step.cu_seqlens[s + 1]))
        own = rows.stop - rows.start
        accepted, slot_in, slot_out = (int(x[s]) for x in (step.accepted, step.slots_in, step.slots_out))
        fresh = step.past_lens[s] == 0
        state = np.zeros((v_heads, dim, dim)) if fresh else past.state[slot_in].astype(np.float64)
        history = np.zeros_like(past.window[slot_in, :3]) if fresh else past.window[slot_in, :3]

        columns = np.concatenate([history, past.window[slot_in, 3 : 3 + accepted], qkv[rows]]).astype(np.float64)
        pending = past.gates[slot_in, :accepted].astype(np.float64)
        log_decay = np.concatenate([pending[:, :v_heads], own_decay[rows]])
        betas = np.concatenate([pending[:, v_heads:], own_beta[rows]])
        q, k, v = split_heads(convolve(columns, weights.conv.astype(np.float64)), k_heads, v_heads, tiled, eps)

        old, new = slice(0, accepted), slice(accepted, accepted + own)
        _, committed = delta_rule(state, q[old], k[old], v[old], log_decay[old], betas[old])
        out, after = delta_rule(committed, q[new], k[new], v[new], log_decay[new], betas[new])
        rms = np.sqrt((out * out).mean(-1, keepdims=True) + eps)
        gate = (sigmoid if sigmoid_gate else silu)(z[rows].astype(np.float64))
        y[rows] = (out / rms * weights.norm).reshape(own, -1) * gate

        present.state[slot_out] = after if commit else committed
        kept = accepted + own if commit else accepted
        present.window[slot_out, :3] = columns[kept : kept + 3]
        present.gates[slot_out, :, :v_heads] = 0
        present.gates[slot_out, :, v_heads:] = NO_TOKEN
        if not commit:
            present.window[slot_out, 3 : 3 + own] = qkv[rows]
            present.gates[slot_out, :own] = np.concatenate([own_decay[rows], own_beta[rows]], 1)
    return y, present
