"""How likely the model itself found a token: before biases, penalties, temperature, filters and constraints."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from trigraph.runtime.device.sampler import SamplingParameters
from trigraph.runtime.requests.options import Options
from trigraph.runtime.sampling.draws import exp, log
from trigraph.runtime.sampling.guide import Guide
from trigraph.runtime.sampling.sampling import Rows, Sampler, Sampling
from trigraph.runtime.sampling.thought import Thought
from trigraph.runtime.sampling.top_logits import top_logits

_BLOCK = 16384  # logits whose exponentials are computed at once: so many stay in a cache


@dataclass(frozen=True)
class TokenLogprob:
    """A token's logarithm of its probability, and those of the most likely tokens in its place, that first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprob(logits: NDArray[np.float32], token: int, top: int) -> TokenLogprob:
    """What one row of logits [vocabulary] says of `token`, and of the `top` most likely ones.

    The same bits on every machine.
    """
    total = log_of_sum(logits)
    ids, values = top_logits(logits, top) if top else ([], [])
    return TokenLogprob(
        token,
        float(logits[token]) - total,
        tuple((other, value - total) for other, value in zip(ids, values, strict=True)),
    )


def log_of_sum(x: NDArray[np.float32]) -> float:
    """Ln of the sum of e^x, one after another; NaN where the largest is no number or infinite.

    The same bits on every machine.
    """
    largest = float(x.max())
    if not math.isfinite(largest):
        return math.nan
    total = 0.0
    for start in range(0, len(x), _BLOCK):
        terms = exp(x[start : start + _BLOCK].astype(np.float64) - largest)
        terms[0] += total
        total = terms.cumsum()[-1]
    return largest + float(log(np.array(total)))


class RecordingSampler(Sampler):
    """A sampler that records what the model itself says of the chosen tokens, in `logprobs` and `hidden`."""

    def __init__(self, options: Options, history: Iterable[int], guide: Guide | None, thought: Thought | None) -> None:
        super().__init__(options.sampling, history, guide, thought)
        self.logprobs: list[TokenLogprob] = []
        self.hidden: list[NDArray[np.float32]] = []
        """The row [hidden] that each token was chosen from."""
        self._top, self._records_hidden = options.logprobs, options.hidden

    def pick(self, step: Rows, row: int, position: int, drawn: int = -1) -> int:
        """The token at `position` of the sequence, chosen from row `row` of `step`."""
        token = super().pick(step, row, position, drawn)
        self._record(step, row, token)
        return token

    def _record(self, step: Rows, row: int, token: int) -> None:
        if self._top is not None:
            self.logprobs.append(token_logprob(step.logits[row], token, self._top))
        if self._records_hidden:
            self.hidden.append(step.hidden[row].copy())


class ForcedSampler(RecordingSampler):
    """A sampler whose first tokens are given. Rounds verify several of them at once, as they do with drafts."""

    def __init__(self, options: Options, history: Iterable[int], guide: Guide | None, thought: Thought | None) -> None:
        super().__init__(options, history, guide, thought)
        self._given = deque(options.forced)

    @property
    def parameters(self) -> SamplingParameters | None:
        """How a device draws what this one chooses of a row by itself; None where more than the row has a say.

        A device has no say while tokens are given.
        """
        return None if self._given else super().parameters

    def pick(self, step: Rows, row: int, position: int, drawn: int = -1) -> int:
        """The token at `position` of the sequence, chosen from row `row` of `step`."""
        if not self._given:
            return super().pick(step, row, position, drawn)
        token = self._given[0]
        self.take(token)
        self._record(step, row, token)
        return token

    def take(self, token: int) -> None:
        """Takes note of the next token; that is all that the choice of later ones depends on."""
        if self._given:
            self._given.popleft()
        super().take(token)

    def forced(self, limit: int) -> list[int]:
        """Tokens, at most `limit`, that will be chosen next whatever their logits are."""
        return [*islice(self._given, limit)] or super().forced(limit)


def scoring(prompt: list[int], top: int) -> tuple[list[int], Options]:
    """A request whose log-probabilities are those of the prompt's tokens from the second on: its prompt, and options.

    `top`: how many of the most likely tokens each of them has beside it.
    """
    rest = tuple(prompt[1:])
    options = Options(Sampling(temperature=0), len(rest), ignore_eos=True, forced=rest, logprobs=top)
    return prompt[:1], options


def sampler_of(options: Options, history: Iterable[int], guide: Guide | None, thought: Thought | None) -> Sampler:
    """The sampler that a request asks for."""
    if options.forced:
        return ForcedSampler(options, history, guide, thought)
    if options.logprobs is None and not options.hidden:
        return Sampler(options.sampling, history, guide, thought)
    return RecordingSampler(options, history, guide, thought)
