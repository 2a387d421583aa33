"""Rounds that a device computes by itself: drafts that feed each other and the verify, and the draw of every token.

The host enqueues all of it, waits once, and reads tokens and hidden rows; logits only where somebody asks for them.
"""

from __future__ import annotations

from collections import abc

import numpy as np

from trigraph.runtime.device.device import NOTHING, Draw, Drawer, Drawing, Fed, Memory
from trigraph.runtime.execution.results import DraftRun, RoundResult
from trigraph.runtime.execution.sessions import Binding
from trigraph.runtime.execution.steps import Run, Sequences, Steps, Tokens

_GREEDY = Drawing(0.0, 0, 1.0, 0.0, 0)  # what nobody reads


def run_device_round(
    steps: Steps,
    drawer: Drawer,
    sequences: Sequences,
    tokens: abc.Sequence[Tokens],
    counts: abc.Sequence[int],
    drawings: abc.Sequence[Drawing | None],
    instead: abc.Sequence[list[int]] | None = None,
) -> RoundResult:
    """Verifies `tokens[i]` of each sequence and `counts[i]` drafts of the head that follow, where that is above 0.

    Such a sequence has one token and a drawing; with None the rows of a sequence are not drawn. `instead` are verified
    in place of the drafts, which are made all the same. Errors: see Steps.draft and verify.
    """
    chained = _Chain(steps, drawer, sequences, counts)
    guesses = [[0] * count for count in counts] if instead is None else instead
    verified = [[*known, *drafts] for known, drafts in zip(tokens, guesses, strict=True)]
    draws = chained.draws(drawings)
    draws += [
        Draw(drawing or _GREEDY, sequence.length + 1 + i, only_drawn=True)
        for sequence, drawing, new in zip(sequences, drawings, verified, strict=True)
        for i in range(len(new))
    ]
    rows = len(draws) - sum(counts)
    drawer.begin(draws)
    chained.run([new[0] for new in tokens])
    found: list[int] = []

    def run(binding: Binding) -> None:
        binding.exchange.send(chained.fed([len(known) for known in tokens]) if instead is None else NOTHING)
        binding.enqueue()
        drawer.draw(binding.exchange, rows)
        read = drawer.read()
        binding.exchange.receive()
        found.extend(read.tolist())
        for new, drafts in zip(verified, instead or chained.drafts(found), strict=True):
            new[len(new) - len(drafts) :] = drafts

    result = steps.verify(sequences, verified, run)
    asked = [drawing is not None for drawing, new in zip(drawings, verified, strict=True) for _ in new]
    drawn = [token if wanted else -1 for token, wanted in zip(found[-rows:], asked, strict=True)]
    return RoundResult(instead or chained.drafts(found), result, chained.runs(), drawn)


class _Chain:
    """The drafts of a round. They are its first draws, link after link."""

    def __init__(self, steps: Steps, drawer: Drawer, sequences: Sequences, counts: abc.Sequence[int]) -> None:
        self._steps, self._drawer, self._sequences, self._counts = steps, drawer, sequences, counts
        depth = max(counts, default=0)
        self._links = [[i for i, count in enumerate(counts) if count > link] for link in range(depth)]
        self._rows: list[int] = []  # of each link
        self._hidden: Memory = None  # rows of the last link
        numbers = iter(range(sum(counts)))
        self._numbers = [{i: next(numbers) for i in members} for members in self._links]

    def draws(self, drawings: abc.Sequence[Drawing | None]) -> list[Draw]:
        """Of all links."""
        return [
            Draw(drawings[i] or _GREEDY, self._sequences[i].length + 1 + link, only_drawn=False)
            for link, members in enumerate(self._links)
            for i in members
        ]

    def run(self, tokens: Tokens) -> None:
        """Enqueues the drafts after `tokens[i]` of each sequence."""
        for link, members in enumerate(self._links):
            sequences = [self._sequences[i] for i in members]
            if not link:
                self._steps.draft(sequences, [tokens[i] for i in members], self._enqueue(len(members)))
                continue
            before = self._links[link - 1]
            fed = {
                "input_ids": [self._drawer.place(self._numbers[link - 1][i]) for i in members],
                "prev_hidden": [self._hidden.row(before.index(i)) for i in members],
            }
            self._steps.draft_more(
                sequences, [0] * len(members), np.zeros((len(members), 1), np.float32), self._enqueue(len(members), fed)
            )

    def fed(self, known: abc.Sequence[int]) -> Fed:
        """For the verify: where its tokens lie, behind `known[i]` tokens of each sequence."""
        if not self._links:
            return NOTHING
        each = zip(known, self._of_each(), strict=True)
        return {"input_ids": [p for count, n in each for p in [*[0] * count, *map(self._drawer.place, n)]]}

    def drafts(self, found: abc.Sequence[int]) -> list[list[int]]:
        """Of each sequence, from the draws by number."""
        return [[found[number] for number in numbers] for numbers in self._of_each()]

    def runs(self) -> list[DraftRun]:
        """What they took, once the device was waited for."""
        sizes = zip(self._rows, self._links, self._drawer.seconds(), strict=False)
        return [DraftRun(rows, len(members), seconds) for rows, members, seconds in sizes]

    def _of_each(self) -> list[list[int]]:
        return [[numbers[i] for numbers in self._numbers if i in numbers] for i in range(len(self._counts))]

    def _enqueue(self, draws: int, fed: Fed = NOTHING) -> Run:
        def run(binding: Binding) -> None:
            exchange = binding.exchange
            exchange.send(fed)
            binding.enqueue()
            self._drawer.draw(exchange, draws)
            self._hidden = exchange.result("hidden")
            self._rows.append(len(exchange.sent["input_ids"]))

        return run
