"""One sequence of tokens, and the books of its state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError
from trigraph.models.rope_positions import positions_between
from trigraph.runtime.images.prompt import PlacedImage
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
    reach: int
    """The most places behind a sequence that a round writes, be it with drafts or with what it verifies."""

    @property
    def pages(self) -> int:
        """Pages that a full context takes."""
        return -(-self.context // self.page_size)

    def check_context(self, length: int, noun: str) -> None:
        """Raises TrigraphError when what `noun` says has more tokens than the context."""
        if length > self.context:
            raise TrigraphError(
                f"the {noun} reaches {length} tokens and the context holds {self.context}; load with a larger context"
            )


class Sequence:
    """Committed tokens, those of the last verify that wait for `keep`, and where the state is that they lead to."""

    def __init__(self, slot: int, limits: StateLimits) -> None:
        self.tokens: list[int] = []  # ids, and in the places of images the negative keys of what is there
        self.images: tuple[PlacedImage, ...] = ()  # all that its positions depend on, and perhaps later ones
        self.pending: list[int] = []  # verified, neither kept nor rejected yet
        self.to_commit = 0  # of `tokens`: how many at the end the next step commits to the recurrent state
        self.mtp_len = 0  # KV length of the MTP head: positions computed from true hidden states
        self.draft_token = -1  # at the last one of these, while it is not committed
        self.drafted_len = 0  # positions after those, chained on the head's own hidden states
        self.slot = slot
        self.next_slot = RELEASED  # or the one that the next step writes, as others read that
        self.pages = np.zeros(limits.pages, np.int32)
        self.page_count = 0
        self.hiddens = HiddenRows(limits.hidden)
        # Set when a step failed halfway, with some layers' state written and others' not.
        self.damaged = False

    @property
    def length(self) -> int:
        """Committed tokens: the position of the next one."""
        return len(self.tokens)

    @property
    def slot_to_write(self) -> int:
        """The slot that its next step writes."""
        return self.slot if self.next_slot == RELEASED else self.next_slot

    def positions(self, start: int, stop: int) -> NDArray[np.int64]:
        """The positions that tokens have, or will have, at places `start` to `stop` - 1, by axis: [3, tokens]."""
        spans = [image.span for image in self.images]
        if spans and start < spans[-1].end:
            return positions_between(start, stop, spans)
        shift = sum(span.shift for span in spans)  # text, as in most steps
        return np.broadcast_to(np.arange(start + shift, stop + shift), (3, stop - start))

    def prefilled(self, tokens: Iterable[int], hidden: NDArray[np.float32] | None) -> None:
        """A prefill commits `tokens`, with the head's KV; `hidden` [hidden] is the last one's row.

        None: the prefill was not waited for. Until a later one is, the sequence is good for nothing else.
        """
        self.tokens += tokens
        self.to_commit, self.mtp_len, self.drafted_len = 0, self.length, 0
        self.damaged = hidden is None
        if hidden is not None:
            self.hiddens.restart(self.length - 1, hidden)

    def verified(self, tokens: Iterable[int], hidden: NDArray[np.float32]) -> None:
        """A verify has run `tokens`, with rows `hidden` [tokens, hidden], and committed those kept before."""
        self.pending, self.to_commit = list(tokens), 0
        self.hiddens.append(hidden)

    def keep(self, count: int, *, head: bool) -> None:
        """Keeps the first `count` pending tokens; the next step commits them. `head`: whether it may draft later."""
        if not 0 <= count <= len(self.pending):
            raise TrigraphError(f"{count} tokens are to be kept, but {len(self.pending)} are pending")
        self.tokens += self.pending[:count]
        if not count or self.pending[0] != self.draft_token:
            # The head's KV of the drafted token is of no use: another token stands, or will stand, in its place.
            self.mtp_len = min(self.mtp_len, self.length - count)
        self.pending, self.to_commit = [], count
        first = min(self.mtp_len, self.length) if head else self.length
        self.hiddens.keep(first - 1, self.length)

    def drafted(self, token: int) -> None:
        """The head has KV of all committed tokens and of `token`, the next one."""
        self.mtp_len, self.drafted_len, self.draft_token = self.length + 1, 0, token

    def drafted_more(self) -> None:
        """The head has KV of one draft more, from its own hidden state."""
        self.drafted_len += 1

    def trim_drafts(self) -> None:
        """Forgets the head's KV of a token that is not committed."""
        self.mtp_len = min(self.mtp_len, self.length)

    def caught_up(self, length: int) -> None:
        """The head has KV of the first `length` tokens, and of nothing else."""
        self.mtp_len = length
        self.hiddens.keep(length - 1, self.length)

    def moved(self, slot: int) -> None:
        """Its recurrent state is in this slot, and its next step writes no other one."""
        self.slot, self.next_slot = slot, RELEASED

    def add_page(self, page: int) -> None:
        """Takes a KV page behind the others."""
        self.pages[self.page_count] = page
        self.page_count += 1

    def released(self) -> None:
        """Its slot and pages are given back."""
        self.slot, self.next_slot, self.page_count, self.damaged = RELEASED, RELEASED, 0, True

    def copy(self, slot: int, limits: StateLimits, *, pending: bool) -> Sequence:
        """Another sequence of the same tokens in `slot`, without pages; `pending`: with what is not committed too."""
        other = Sequence(slot, limits)
        other.tokens, other.to_commit, other.damaged = self.tokens.copy(), self.to_commit, self.damaged
        other.images = self.images
        if pending:
            other.pending, other.mtp_len, other.drafted_len = self.pending.copy(), self.mtp_len, self.drafted_len
            other.draft_token, other.hiddens = self.draft_token, self.hiddens.copy()
            return other
        other.mtp_len = min(self.mtp_len, self.length)
        if self.length:
            first = min(max(other.mtp_len - 1, self.hiddens.start), self.length - 1)
            other.hiddens.restore(first, self.hiddens.span(first, self.length))
        return other

    def restored(self, tokens: list[int], to_commit: int, mtp_len: int, hiddens: NDArray[np.float32]) -> None:
        """Its state is that of a checkpoint at the end of `tokens`, with the last rows `hiddens` [rows, hidden]."""
        self.tokens, self.pending, self.to_commit = tokens, [], to_commit
        self.drafted_len, self.draft_token = 0, -1
        first = self.length - len(hiddens)
        self.hiddens.restore(first, hiddens)
        # A program that cannot draft keeps no hidden rows: the head's KV stays empty there, which costs acceptance.
        self.mtp_len = mtp_len if first < mtp_len else self.length
