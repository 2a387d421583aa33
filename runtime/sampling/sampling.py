"""The choice of the next token from a row of logits.

Order of the filters, as in transformers and vLLM: biases, penalties, temperature, top-k, top-p, min-p. The random
numbers of a position depend on the seed and that position alone, so a text does not depend on how many tokens a step
verified.
"""

from __future__ import annotations

import math
from collections import Counter, abc, deque
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trigraph.models.checks import check
from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.sampler import SamplingParameters
from trigraph.runtime.sampling import draws
from trigraph.runtime.sampling.biases import LARGEST, Biases
from trigraph.runtime.sampling.guide import Guide
from trigraph.runtime.sampling.thought import Thought
from trigraph.runtime.sampling.top_logits import top_logits

_LONGEST = 2**31 - 1
_RULES: tuple[tuple[str, type, abc.Callable[[Any], bool], str], ...] = (
    ("temperature", float, lambda value: 0 <= value < math.inf, "0 or more, and finite"),
    ("top_k", int, lambda value: 0 <= value <= _LONGEST, f"from 0 (off) to {_LONGEST}"),
    ("top_p", float, lambda value: 0 < value <= 1, "above 0 and at most 1"),
    ("min_p", float, lambda value: 0 <= value <= 1, "from 0 to 1"),
    ("repeat_penalty", float, lambda value: 0.01 <= value <= 100, "from 0.01 to 100"),
    ("presence_penalty", float, lambda value: abs(value) <= LARGEST, f"from -{LARGEST:g} to {LARGEST:g}"),
    ("frequency_penalty", float, lambda value: abs(value) <= LARGEST, f"from -{LARGEST:g} to {LARGEST:g}"),
    ("penalty_window", int, lambda value: -1 <= value <= _LONGEST, f"-1 (all), or from 0 (none) to {_LONGEST}"),
    ("seed", int, lambda value: 0 <= value < 2**64, "from 0 to 2^64 - 1"),
)


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. `temperature` 0 takes the most likely one; `top_k` 0, `top_p` 1 and `min_p` 0 are off.

    Penalties look at the last `penalty_window` tokens of prompt and completion (-1: all, 0: none): `repeat_penalty`
    divides positive logits and multiplies negative ones, `presence_penalty` is subtracted once, `frequency_penalty`
    each time. `logit_bias` holds pairs of a token id and what is added to its logit before that; -inf bans the token.
    """

    temperature: float = 0.7
    top_k: int = 20
    top_p: float = 0.95
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 64
    seed: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        for name, kind, holds, wanted in _RULES:
            check(name, getattr(self, name), kind, holds, wanted)
        object.__setattr__(self, "logit_bias", Biases(self.logit_bias))

    def check_vocabulary(self, vocab: int) -> None:
        """Raises TrigraphError when a bias is for a token that a vocabulary of `vocab` tokens does not have."""
        for token in Biases(self.logit_bias).ends:
            if not 0 <= token < vocab:
                raise TrigraphError(f"logit_bias is for token {token}; ids of this model are from 0 to {vocab - 1}")

    @cached_property
    def parameters(self) -> SamplingParameters:
        """What is drawn with when biases and penalties were applied."""
        return SamplingParameters(self.temperature, self.top_k, self.top_p, self.min_p, self.seed)

    @property
    def penalizes(self) -> bool:
        """Whether any penalty changes logits."""
        penalties = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty)
        return self.penalty_window != 0 and penalties != (1.0, 0.0, 0.0)


class Rows(Protocol):
    """What a step computed, a row per token: `logits` [rows, vocabulary], their argmax `tokens`, and `hidden`."""

    @property
    def logits(self) -> NDArray[np.float32]: ...
    @property
    def tokens(self) -> NDArray[np.int64]: ...
    @property
    def hidden(self) -> NDArray[np.float32]: ...


class Sampler:
    """Chooses the tokens of a request in order. `history`: the prompt; `guide` has the last word, after a `thought`."""

    def __init__(
        self,
        options: Sampling,
        history: abc.Iterable[int],
        guide: Guide | None = None,
        thought: Thought | None = None,
    ) -> None:
        self.options = options
        self.guide = guide
        self._thought = thought
        self._biases = Biases(options.logit_bias)
        self._penalties = Penalties(options, history) if options.penalizes else None
        self._plain = self._penalties is None and not self._biases
        self._greedy = options.temperature == 0 and self._plain
        self._free = self._plain and guide is None and thought is None

    @property
    def ready(self) -> bool:
        """Whether `pick` has what it needs beside logits; else it may raise LateError, which changes nothing."""
        return self.guide is None or self.guide.ready

    @property
    def parameters(self) -> SamplingParameters | None:
        """How a device draws what this one chooses of a row by itself; None where more than the row has a say."""
        return self.options.parameters if self._plain else None

    def pick(self, step: Rows, row: int, position: int, drawn: int = -1) -> int:
        """The token at `position` of the sequence, chosen from row `row` of `step`.

        `drawn`: what the device has drawn there as `parameters` say; -1 for nothing.
        """
        if self._free:
            return drawn if drawn >= 0 else self._first_choice(step, row, position)
        token = self._choose(step, row, position, drawn)
        self.take(token)
        return token

    def take(self, token: int) -> None:
        """Takes note of the next token; that is all that the choice of later ones depends on."""
        if self._penalties is not None:
            self._penalties.add(token)
        if (follower := self._follower) is not None:
            follower.advance(token)

    def guess(self, drafted: Rows, row: int, position: int) -> int:
        """What `pick` would choose at `position` if row `row` were the model's, of its first tokens at least.

        Constraints have no say, and penalties know no guesses before this one.
        """
        try:
            return self._first_choice(drafted, row, position)
        except TrigraphError:  # a guess may be wrong, and the verify sees for itself
            return int(drafted.tokens[row])

    def guess_among(self, ids: NDArray[np.int64], logits: NDArray[np.float32], position: int) -> int:
        """The place in `ids` of the token that `guess` would give if all others were out of the question."""
        if self._greedy:
            return int(logits.argmax())
        order = ids.argsort()
        tokens, scores = ids[order], logits[order]
        if not self._plain:
            every = np.full(tokens[-1] + 1, -np.inf, np.float32)
            every[tokens] = scores
            scores = self._adjusted(every)[tokens]
        try:
            return int(order[tokens.searchsorted(choose(scores, self.options, position, tokens))])
        except TrigraphError:
            return int(logits.argmax())

    def _first_choice(self, step: Rows, row: int, position: int) -> int:
        """What no constraint has a say in."""
        if self._greedy and (token := int(step.tokens[row])):
            return token
        logits = step.logits[row]  # token 0 is also what comes of logits that are not numbers
        return choose(logits if self._plain else self._adjusted(logits), self.options, position)

    @property
    def _follower(self) -> Guide | Thought | None:
        """What follows the text now."""
        return self.guide if self._thought is None or self._thought.over else self._thought

    def forced(self, limit: int) -> list[int]:
        """Tokens, at most `limit`, that will be chosen next whatever their logits are."""
        return self._imposed(limit)

    def _imposed(self, limit: int) -> list[int]:
        """What the thought or the constraint leaves no choice of."""
        if self._free or (follower := self._follower) is None:
            return []
        tokens, banned = follower.forced[:limit], self._biases.banned
        return tokens if follower is self._thought else [*takewhile(lambda token: token not in banned, tokens)]

    def _choose(self, step: Rows, row: int, position: int, drawn: int) -> int:
        if imposed := self._imposed(1):
            return imposed[0]
        if isinstance(follower := self._follower, Thought):
            return follower.instead_of(self._chosen(step, row, position, None, drawn))
        return self._chosen(step, row, position, follower, drawn)

    def _chosen(self, step: Rows, row: int, position: int, guide: Guide | None, drawn: int) -> int:
        if guide is None:
            return drawn if drawn >= 0 else self._first_choice(step, row, position)
        if self._greedy and guide.allows(best := int(step.tokens[row])):
            return best
        logits = self._adjusted(step.logits[row])
        ids = self._candidates(logits, guide)
        return choose(logits[ids], self.options, position, ids)

    def _candidates(self, logits: NDArray[np.float32], guide: Guide) -> NDArray[np.int64]:
        """Tokens that the guide allows, in order of their ids: all of them, or as many as the filters can ask for."""
        wanted = 1 if self.options.temperature == 0 else self.options.top_k
        allowed: list[int] = []
        for token in top_logits(logits, 4 * wanted)[0] if wanted else ():
            if guide.slow:
                break
            if guide.allows(token):
                allowed.append(token)
                if len(allowed) == wanted:
                    return np.sort(allowed)
        return guide.allowed()

    def _adjusted(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits with biases and penalties; a copy, unless there are none."""
        if self._biases:
            logits = self._biases.add(logits)
        return logits if self._penalties is None else self._penalties.apply(logits)


class Penalties:
    """Occurrences of tokens in the window, and what they subtract from logits."""

    def __init__(self, options: Sampling, history: abc.Iterable[int]) -> None:
        self._options = options
        window = options.penalty_window
        self._recent: deque[int] = deque(history, maxlen=None if window < 0 else window)
        self._counts = Counter(self._recent)

    def add(self, token: int) -> None:
        """Records a chosen token."""
        if len(self._recent) == self._recent.maxlen:
            oldest = self._recent[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._recent.append(token)
        self._counts[token] += 1

    def apply(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """A penalised copy of `logits` [n], of the first n tokens."""
        options = self._options
        ids = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
        counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
        ids, counts = ids[ids < len(logits)], counts[ids < len(logits)]
        values = logits[ids]
        values = np.where(values > 0, values / options.repeat_penalty, values * options.repeat_penalty)
        values = values - options.presence_penalty - options.frequency_penalty * counts
        penalized = logits.copy()
        penalized[ids] = values
        return penalized


def choose(logits: NDArray[np.float32], options: Sampling, position: int, ids: NDArray[np.int64] | None = None) -> int:
    """The token that `options` draw at `position` from logits [n], of tokens `ids` [n] or of the first n tokens.

    Raises TrigraphError when no logit is a finite number.
    """
    if options.temperature > 0:
        drawn = draws.draw(logits, ids, options.parameters, position)
    else:
        best = int(logits.argmax())
        drawn = (best if ids is None else int(ids[best])) if math.isfinite(logits[best]) else None
    if drawn is None:
        raise TrigraphError(
            "the logits of all tokens that may follow are not finite numbers; "
            "are the model's weights damaged, or these tokens banned by logit_bias?"
        )
    return drawn
