"""Samplers that keep what the model said of each token: log-probabilities, hidden rows, hashes of logits."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.sampler import SamplingParameters
from trigraph.runtime.requests.logprobs import TokenLogprob, token_logprob
from trigraph.runtime.requests.options import Options
from trigraph.runtime.sampling.guide import Guide
from trigraph.runtime.sampling.sampling import Rows, Sampler
from trigraph.runtime.sampling.thought import Thought


class RecordedRow(NamedTuple):
    """A chosen token, and the SHA-256 of the logits that it was chosen from, as little-endian float32 by id."""

    token: int
    digest: bytes


class OtherTokenError(TrigraphError):
    """A token of a completion that is computed again is not the one that its logits, options and seed give."""

    def __init__(self, number: int, given: int, chosen: int) -> None:
        super().__init__(f"token {number} of the completion is {given}; the model chooses {chosen}")
        self.number = number


class RecordingSampler(Sampler):
    """A sampler that records what the model itself says of the chosen tokens: `logprobs`, `hidden`, `rows`."""

    def __init__(self, options: Options, history: Iterable[int], guide: Guide | None, thought: Thought | None) -> None:
        super().__init__(options.chosen_by, history, guide, thought)
        self.logprobs: list[TokenLogprob] = []
        self.hidden: list[NDArray[np.float32]] = []
        """The row [hidden] that each token was chosen from."""
        self.rows: list[RecordedRow] = []
        self._options = options

    def pick(self, step: Rows, row: int, position: int, drawn: int = -1) -> int:
        token = super().pick(step, row, position, drawn)
        self._record(step, row, token)
        return token

    def _record(self, step: Rows, row: int, token: int) -> None:
        options = self._options
        if options.hidden:
            self.hidden.append(step.hidden[row].copy())
        if options.logprobs is None and not options.receipt:
            return
        logits = step.logits[row]  # a copy where they lie on a device
        if options.logprobs is not None:
            self.logprobs.append(token_logprob(logits, token, options.logprobs))
        if options.receipt:
            self.rows.append(RecordedRow(token, row_digest(logits)))


class ForcedSampler(RecordingSampler):
    """A sampler whose first tokens are given. Rounds verify several of them at once, as they do with drafts."""

    def __init__(self, options: Options, history: Iterable[int], guide: Guide | None, thought: Thought | None) -> None:
        super().__init__(options, history, guide, thought)
        self._given = deque(options.forced)

    @property
    def parameters(self) -> SamplingParameters | None:
        """A device has no say while tokens are given."""
        return None if self._given else super().parameters

    def pick(self, step: Rows, row: int, position: int, drawn: int = -1) -> int:
        if not self._given:
            return super().pick(step, row, position, drawn)
        token = self._given[0]
        self.take(token)
        self._record(step, row, token)
        return token

    def take(self, token: int) -> None:
        if self._given:
            self._given.popleft()
        super().take(token)

    def forced(self, limit: int) -> list[int]:
        return [*islice(self._given, limit)] or super().forced(limit)


class ReplayingSampler(RecordingSampler):
    """Chooses tokens that it should choose as before. Rounds verify several of them at once, as they do with drafts.

    `pick` raises OtherTokenError where it chooses another one.
    """

    def __init__(
        self,
        options: Options,
        history: Iterable[int],
        guide: Guide | None,
        thought: Thought | None,
        expected: Sequence[int],
    ) -> None:
        super().__init__(options, history, guide, thought)
        self._expected = expected

    def pick(self, step: Rows, row: int, position: int, drawn: int = -1) -> int:
        number = len(self.rows)
        token = super().pick(step, row, position, drawn)
        if token != self._expected[number]:
            raise OtherTokenError(number, self._expected[number], token)
        return token

    def forced(self, limit: int) -> list[int]:
        start = len(self.rows)
        return [*self._expected[start : start + limit]]


def row_digest(logits: NDArray[np.float32]) -> bytes:
    """SHA-256 of a row of logits [vocabulary], every NaN as NumPy's: which one a processor gives is its own choice."""
    row = np.ascontiguousarray(logits, "<f4")
    if np.isnan(row.max()):
        row = np.where(np.isnan(row), np.float32(np.nan), row).astype("<f4")
    return hashlib.sha256(row.data).digest()


def sampler_of(
    options: Options,
    history: Iterable[int],
    guide: Guide | None,
    thought: Thought | None,
    replayed: Sequence[int] | None = None,
) -> Sampler:
    """The sampler that a request asks for; with `replayed`, one that checks that it chooses these tokens again."""
    if replayed is not None:
        return ReplayingSampler(options, history, guide, thought, replayed)
    if options.forced:
        return ForcedSampler(options, history, guide, thought)
    if options.logprobs is None and not options.hidden and not options.receipt:
        return Sampler(options.chosen_by, history, guide, thought)
    return RecordingSampler(options, history, guide, thought)
