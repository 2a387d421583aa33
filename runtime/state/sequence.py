"""What is known of one sequence of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trigraph.runtime.state.hidden_states import HiddenRows


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
    """One text: its committed tokens, those of the last verify that wait for `accept`, and the state that it holds."""

    def __init__(self, slot: int, limits: StateLimits) -> None:
        self.tokens: list[int] = []
        self.pending: list[int] = []  # verified, neither kept nor rejected yet
        self.accepted = 0  # tokens of the last verify that the next step commits to the recurrent state
        self.entries = 0  # leading entries of the MTP cache that come from true hidden states
        self.draft_token = -1  # of the last one of these, while it is not committed
        self.drafted = 0  # entries after those, chained on the head's own hidden states
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
