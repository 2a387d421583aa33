"""Random requests in random rounds on the fake model: what must hold after every round, whatever came before."""

from __future__ import annotations

import time
from collections import Counter
from operator import attrgetter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.fakes.engine import assert_settled
from support.fakes.rounds import CONTEXT, alone, finish, fresh, options, queued, run_round, scheduler, tokens
from trigraph.runtime import Options
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.request import Request
from trigraph.runtime.scheduler.admission import Admission

SIZES = st.sampled_from([{}, {"pages": 16}, {"pages": 21}, {"slots": 6}, {"slots": 7, "pages": 18}])
DRAFTERS = st.sampled_from([(False, 0, 0), (True, 0, 0), (True, 4, 0), (True, 12, 0), (True, 4, 5), (True, 12, 9)])
"""Whether something drafts, the rows of a block drafter, more of them than a verify has, too, and its window."""
PROMPTS = st.tuples(st.integers(0, 40), st.integers(0, 2), st.integers(1, 23))
"""How much of a common text, and which one of a few texts of which length follows."""


class Rounds(RuleBasedStateMachine):
    """Requests come, are cancelled, run out of time; rounds are run one at a time."""

    @initialize(sizes=SIZES, sequences=st.integers(1, 3), drafter=DRAFTERS, piece=st.integers(1, 16))
    def start(self, sizes: dict[str, int], sequences: int, drafter: tuple[bool, int, int], piece: int) -> None:
        self.patch = pytest.MonkeyPatch()
        decodes = attrgetter("decodes")
        self.patch.setattr(Admission, "piece", lambda self, active: piece if any(map(decodes, active)) else 16)
        draft, block, window = drafter
        self.engine, _ = fresh(draft, block=block, window=window, sequences=sequences, **sizes)
        self.asked: list[tuple[Handle, list[int], Options]] = []

    @rule(
        prompt=PROMPTS,
        seed=st.integers(0, 3),
        length=st.integers(0, 40),
        draft=st.sampled_from([None, 0, 1, 7]),
        priority=st.integers(-1, 1),
    )
    def submit(self, prompt: tuple[int, int, int], seed: int, length: int, draft: int | None, priority: int) -> None:
        common, number, rest = prompt
        ids = [*tokens(CONTEXT)[:common], *tokens(rest, 1 + number)]
        if not (heads := self.engine.model.heads):
            draft = None
        elif draft is not None:
            draft = min(draft, max(head.drafts for head in heads))
        wanted = options(seed, length, draft_tokens=draft)
        request = queued(self.engine, ids, wanted, priority=priority, checkpoints={common} if seed == 0 else ())
        self.asked.append((request, ids, wanted))

    @precondition(lambda self: self.asked)
    @rule(number=st.integers(0, 99))
    def cancel(self, number: int) -> None:
        self.asked[number % len(self.asked)][0].cancel()

    @precondition(lambda self: self.asked)
    @rule(number=st.integers(0, 99))
    def expire(self, number: int) -> None:
        handle = self.asked[number % len(self.asked)][0]
        if handle.request is not None:
            handle.request.deadline = time.monotonic()

    @rule(count=st.integers(1, 6))
    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.round()

    def round(self) -> None:
        """A round, in which a request comes on, or ends."""
        before = {request: _reached(request) for request in scheduler(self.engine).active}
        waiting = len(self.engine._driver._waiting)
        run_round(self.engine)
        active = scheduler(self.engine).active
        if before:
            new = dict.fromkeys(active, (0, 0))  # one of these may be first
            reached = new | before
            came_on = any(request.completion.done or _reached(request) > reached[request] for request in reached)
            assert came_on, "all stand still"
        elif waiting:
            assert active or len(self.engine._driver._waiting) < waiting, "nobody began"
        self.check()

    @invariant()
    def check(self) -> None:
        if not hasattr(self, "engine"):
            return
        active, state = scheduler(self.engine).active, self.engine.steps.state
        assert len(active) <= state.sequences
        assert [request.rank for request in active] == sorted(request.rank for request in active)
        kept = [node.value.sequence for node in self.engine.cache._tree if node.value is not None]
        held = [*kept, *(request.state for request in active)]
        pages = [page for sequence in held for page in sequence.pages[: sequence.page_count].tolist()]
        assert state.pages._references == Counter(pages), "a page is held by nobody, or was given back"
        assert state.slots._references == Counter(sequence.slot for sequence in held)
        for request, prompt, wanted in self.asked:
            expected = alone(prompt, wanted)
            assert request.error is None
            assert request.ids == expected[: len(request.ids)]
            if request.done and request.stats.finish_reason not in ("cancelled", "timeout"):
                assert request.ids == expected

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            requests = [request for request, _, _ in self.asked]
            # Each piece of a prompt and each token takes a round at most, and each preemption all of them again.
            finish(self.engine, requests, 1 + sum((1 + r.preemptions) * 2 * CONTEXT for r in requests) * 3)
            self.check()
            assert_settled(self.engine)
            self.patch.undo()


def _reached(request: Request) -> tuple[int, int]:
    """Tokens of the completion, and those in the state, which a preempted request computes again."""
    return len(request.completion.ids), 0 if request.sequence is None else request.sequence.length


Rounds.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestRounds = Rounds.TestCase
