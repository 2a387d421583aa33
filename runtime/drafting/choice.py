"""How many drafts each request of a batch takes: those that bring most tokens a second, for what rows cost here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trigraph.runtime.drafting.costs import Costs, lowest

_MARGIN = 1.01  # how much faster than without them drafts must look
_KEPT = 8  # most rounds for which a choice is kept that came out as the one before
_TRIAL_SHARE = 0.0075  # of the tokens, that trials of other choices may cost
_FIRST_CREDIT, _MOST_CREDIT = 2.0, 8.0  # tokens of each request
_LEAST_LOSS = 0.1  # tokens of each request that a trial counts for, as the estimate may be too hopeful


@dataclass
class Candidates:
    """Drafts that a request could have verified beside its next token."""

    chances: list[float] = field(default_factory=list)
    """How likely each draft and all those before it are right. It may take no more drafts than these."""
    tokens: list[int] | None = None
    """The drafts; None where the MTP head is to make them."""
    least: int = 0
    """Drafts that it takes at any price."""
    behind: int = 0
    """Tokens that the head has not seen yet."""


class DraftCost(NamedTuple):
    """The cost of one draft more, in tokens that could be had in the same time."""

    row: float = 0.0
    """Of its row in the verify."""
    draft: float = 0.0
    """Of a request's share of a draft run."""


class Speeds:
    """Tokens and seconds of a round, by draft lengths."""

    def __init__(self, candidates: Sequence[Candidates], costs: Costs) -> None:
        self._candidates = candidates
        self._round = costs.round_seconds(len(candidates), sum(len(c.chances) for c in candidates))
        self.timed = costs.verify.most_rows(len(candidates)) - len(candidates)
        """The most drafts in all that a round was timed with."""
        self._draft = costs.draft_seconds(sum(c.tokens is None for c in candidates))
        self._catch_up = costs.draft.row  # the head computes kept drafts again, from their true hidden states
        self.draft_share = self._draft[-1] / max(1, len(self._draft) - 1)

    def tokens(self, lengths: Sequence[int]) -> float:
        """Tokens that a round is likely to bring."""
        return sum(1 + sum(c.chances[:length]) for c, length in zip(self._candidates, lengths, strict=True))

    def seconds(self, lengths: Sequence[int], *, now: bool = False) -> float:
        """Seconds of such a round; `now`: with what the head must be shown first, which later rounds need not."""
        found = self._round[sum(lengths)]
        heads = [(c, length) for c, length in zip(self._candidates, lengths, strict=True) if c.tokens is None]
        for depth in range(max((length for _, length in heads), default=0)):
            found += self._draft[sum(length > depth for _, length in heads)]
        behind = sum(c.behind if now else sum(c.chances[:length]) for c, length in heads if length)
        return found + self._catch_up * behind

    def best(self, least: Sequence[int], most: int) -> tuple[float, list[int]]:
        """The lengths that bring most tokens a second, and how many; none shorter than `least`, at most `most` in all.

        The most likely drafts come first, and the chances of a request only fall. So of n drafts the first n are best,
        but for draft runs, which all requests share that draft as deep: each greatest depth is looked at alone.
        """
        order = sorted(
            (-chance, number, i)
            for i, c in enumerate(self._candidates)
            for number, chance in enumerate(c.chances[least[i] :], least[i])
        )
        is_head = [c.tokens is None for c in self._candidates]
        deepest = max((len(c.chances) for c in self._candidates if c.tokens is None), default=0)
        start, base = sum(least), (self.tokens(least), self.seconds(least) - self._round[sum(least)])
        best, chosen = base[0] / (base[1] + self._round[start]), (0, 0)
        for depth in range(deepest + 1):
            (tokens, drafting), rows = base, start
            members = [sum(h and n > d for h, n in zip(is_head, least, strict=True)) for d in range(deepest)]
            for unlikely, number, i in order:
                if is_head[i]:
                    if number >= depth:
                        continue
                    members[number] += 1
                    drafting += self._draft[members[number]] - self._draft[members[number] - 1]
                    drafting -= self._catch_up * unlikely
                rows += 1
                tokens -= unlikely
                if tokens / (drafting + self._round[rows]) > best and rows <= most:
                    best, chosen = tokens / (drafting + self._round[rows]), (depth, rows - start)
        lengths, (depth, count) = list(least), chosen
        for _, _, i in [item for item in order if not is_head[item[2]] or item[1] < depth][:count]:
            lengths[i] += 1
        return best, lengths


class Governor:
    """Chooses the drafts of each round. One for a model: requests come and go, what is known of the machine stays."""

    def __init__(self, costs: Costs | None = None) -> None:
        self.costs = costs or Costs()
        self.cost = DraftCost()
        """As of the last choice."""
        self._lengths: list[int] = []  # the last choice
        self._left = self._keep = 0  # rounds for which it is kept: still, and in all
        self._credit = _FIRST_CREDIT  # tokens of each request that trials may cost
        self._turn = 0
        self._trial: list[int] = []  # lengths in place of the choice's; a shape's first run is not timed, so twice
        self._tried = 0.0  # tokens a second of the choice that the last round was not
        self._ended = 0.0

    def choose(self, candidates: Sequence[Candidates]) -> list[int]:
        """The most drafts of each request in the next round."""
        least, sequences = [c.least for c in candidates], len(candidates)
        by_head = not any(c.tokens for c in candidates)
        if by_head and self._left and sequences == len(self._lengths):
            self._left -= 1
            return _fitting(self._lengths, candidates)
        if not any(len(c.chances) > c.least for c in candidates):
            return least
        if not self.costs.verify.timed(sequences + sum(least), sequences):
            return least  # a guess is not good enough for what drafts are held against
        speeds = Speeds(candidates, self.costs)
        plain = speeds.tokens(least) / speeds.seconds(least)
        speed, lengths = speeds.best(least, speeds.timed)
        if speed <= _MARGIN * plain:
            speed, lengths = plain, least
        self.cost = DraftCost(self.costs.verify.row * speed, speeds.draft_share * speed)
        settled = lengths == self._lengths
        self._keep = min(2 * self._keep + 1, _KEPT) if by_head and settled else 0
        self._lengths, self._left = lengths, self._keep
        if len(self._trial) == sequences and by_head:
            trial, self._trial = _fitting(self._trial, candidates), []
        else:
            trial = self._trial = self._other(candidates, speeds, speed, settled)
        if trial and trial != lengths:
            self._tried, self._left, self._keep = speed, 0, 0
            return trial
        return lengths

    def _other(self, candidates: Sequence[Candidates], speeds: Speeds, speed: float, settled: bool) -> list[int]:
        """A choice to try in place of the one that brings `speed` tokens a second, if the credit allows the loss.

        It is one that looks faster, with up to twice as many drafts as were timed; or else, where the choice came out
        as the one before, in turn: a draft more for one of them, the same number for all.
        """
        least, lengths = [c.least for c in candidates], self._lengths
        hopeful, found = speeds.best(least, 2 * speeds.timed + 1)
        if hopeful <= _MARGIN * speed:
            if not settled:
                return []
            turn, same = divmod(self._turn, 2)
            self._turn += 1
            able = [i for i, c in enumerate(candidates) if c.tokens is None and lengths[i] < len(c.chances)]
            more = able[turn % len(able)] if able else -1
            depth = (turn + 1) % (1 + max(len(c.chances) for c in candidates))
            found = [
                (depth if same else length + (i == more)) if c.tokens is None else length
                for i, (c, length) in enumerate(zip(candidates, lengths, strict=True))
            ]
            found = _fitting(found, candidates)
        loss = (speed * speeds.seconds(found, now=True) - speeds.tokens(found)) / len(candidates)
        return found if max(loss, _LEAST_LOSS) <= self._credit else []

    def observe(self, requests: int, tokens: int, started: float, ended: float) -> None:
        """Takes in that a round brought `tokens` tokens of so many requests from `started` to `ended`."""
        if self._ended:
            self.costs.between = lowest(self.costs.between, max(1e-9, started - self._ended))
        self._ended = ended
        if self._tried:  # a trial costs what it lost in truth, and may gain
            self._credit += (tokens - self._tried * (ended - started + self.costs.between)) / requests
        self._credit, self._tried = min(self._credit + _TRIAL_SHARE * tokens / requests, _MOST_CREDIT), 0.0


def _fitting(lengths: Sequence[int], candidates: Sequence[Candidates]) -> list[int]:
    """The lengths, as far as there are candidates."""
    return [min(max(length, c.least), len(c.chances)) for length, c in zip(lengths, candidates, strict=True)]
