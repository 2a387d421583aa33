"""What is known of one sequence of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trigraph.runtime.state.hidden_states import HiddenRows

RELEASED = -1
"""Slot of a sequence that has given its state back."""


@dataclass(frozen=True)
class StateLimits:
    """What a package fixes (`page_size` in tokens, `max_pending` = K) and a host chooses (`context` in tokens)."""

    context: int
    page_size: int
    max_pending: int
    hidden: int

    @property
    def pages(self) -> int:
        """Pages that a full context takes."""
        return -(-self.context // self.page_size)


class Sequence:
    """Committed tokens, those of the last verify that wait for `accept`, and where the state is that they lead to."""

    def __init__(self, slot: int, limits: StateLimits) -> None:
        self.tokens: list[int] = []
        self.pending: list[int] = []  # verified, neither kept nor rejected yet
        self.to_commit = 0  # of `tokens`: how many at the end the next step commits to the recurrent state
        self.mtp_len = 0  # KV length of the MTP head: positions computed from true hidden states
        self.draft_token = -1  # at the last one of these, while it is not committed
        self.drafted_len = 0  # positions after those, chained on the head's own hidden states
        self.slot = slot
        self.pages = np.zeros(limits.pages, np.int32)
        self.page_count = 0
        self.hiddens = HiddenRows(limits.hidden)
        # Set when a step failed halfway, with some layers' state written and others' not.
        self.damaged = False

    @property
    def length(self) -> int:
        """Committed tokens: the position of the next one."""
        return len(self.tokens)
