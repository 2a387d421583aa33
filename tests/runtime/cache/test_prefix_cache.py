"""The prefix cache against a plain list of what was inserted; slots and pages are counted."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.fakes.model import FakeModel, chaotic, mostly_right
from support.fakes.steps import VOCAB, check, free, make, text
from support.requests.cached_prompts import compute
from support.requests.sessions import MODEL
from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.prefix_cache import PrefixCache
from trigraph.runtime.cache.session_file import SessionFile
from trigraph.runtime.execution.results import StepResult
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.state.sequence import Sequence

TOKENS = st.lists(st.integers(0, 2), max_size=12)


def setup(sequences: int = 4, context: int = 64) -> tuple[FakeModel, Steps, PrefixCache]:
    model = make()
    steps = model.steps(context, sequences)
    return model, steps, PrefixCache(steps)


def test_a_prompt_that_grows() -> None:
    _, steps, cache = setup()
    assert [compute(steps, cache, text(n)) for n in (20, 33, 33, 40, 39, 19)] == [0, 20, 33, 33, 33, 0]
    assert (cache.stats.hits, cache.stats.misses) == (4, 2)
    assert (cache.stats.tokens_found, cache.stats.tokens_missed) == (20 + 33 * 3, 20 + 13 + 7 + 6 + 19)
    # Pages of four tokens: 5 of the first prompt, 4 more up to 33, 2 more up to 40 and to 39 each, 5 of the last one.
    assert free(steps) == (steps.state.slots.size - 5, steps.state.pages.size - (5 + 4 + 2 + 2 + 5))
    cache.clear()
    assert free(steps) == (steps.state.slots.size, steps.state.pages.size)


def test_where_prompts_part_is_worth_a_checkpoint() -> None:
    _, steps, cache = setup()
    document = text(30)
    assert compute(steps, cache, [*document, 1, 2, 3]) == 0
    found = cache.find([*document, 5, 6])
    assert (found.sequence.length, found.parted) == (0, 30)
    steps.release(found.sequence)
    assert compute(steps, cache, [*document, 5, 6]) == 0
    assert compute(steps, cache, [*document, 7]) == 30
    assert cache.find(document[:29]).parted is None, "the prompt ends there anyway"


def test_a_beginning_that_is_not_worth_a_checkpoint() -> None:
    _, steps, cache = setup()
    compute(steps, cache, [*text(15), 1, 2])
    assert cache.find([*text(15), 3, 4]).parted is None


def test_an_end_without_its_row_is_no_start_for_the_same_prompt() -> None:
    _, steps, cache = setup()
    sequence = steps.new_sequence()
    steps.prefill([sequence], [text(9)])
    cache.insert(sequence, None)
    assert cache.find(text(9)).sequence.length == 0
    assert cache.find(text(10)).sequence.length == 9
    row = steps.prefill([sequence], [[1]])
    cache.insert(sequence, row)
    steps.verify([sequence], [[2]])  # overwrites nothing that was kept
    found = cache.find([*text(9), 1])
    assert found.row is not None
    np.testing.assert_array_equal(found.row.logits[0], make().next_logits((*text(9), 1)))


@pytest.mark.parametrize("kept", [0, 2, 3])
def test_what_waits_behind_a_checkpoint_is_left_out(kept: int) -> None:
    """Drafts, rejected and pending tokens, and pages reserved for them."""
    model, steps, cache = setup()
    sequence = steps.new_sequence()
    steps.prefill([sequence], [text(6)])
    for token in (1, 2):
        guess = steps.draft([sequence], [token])
        drafted = guess.tokens.tolist()
        steps.draft_more([sequence], guess.tokens.tolist(), guess.hidden)
        steps.verify([sequence], [[token, *drafted, 3]])
        cache.insert(sequence, None)  # while tokens are pending
        steps.keep(sequence, kept)
        cache.insert(sequence, None)
    tokens = [*sequence.tokens]
    steps.draft([sequence], [4])
    cache.insert(sequence, None)
    check(model, steps, sequence, tokens)
    for length in {6, len(tokens)}:
        found = cache.find([*tokens[:length], 0]).sequence
        assert found.page_count == -(-length // 4)
        steps.draft([found], [1])  # the fake model checks what it reads
        check(model, steps, found, tokens[:length])


def test_the_cheapest_to_compute_again_goes_first() -> None:
    _, steps, cache = setup(sequences=2)  # four slots
    compute(steps, cache, text(30, 1))
    compute(steps, cache, text(30, 2))
    compute(steps, cache, [*text(30, 2), 1])  # a token behind the other
    compute(steps, cache, text(20, 3))
    compute(steps, cache, text(20, 4))
    assert compute(steps, cache, text(30, 1)) == 30
    assert compute(steps, cache, text(30, 2)) == 30
    assert compute(steps, cache, [*text(30, 2), 1]) == 30, "was evicted"


def test_a_checkpoint_in_between_makes_those_behind_it_cheap() -> None:
    _, steps, cache = setup(sequences=2)
    document = text(40)
    compute(steps, cache, [*document, 1])
    compute(steps, cache, text(30, 1))
    compute(steps, cache, [*document, 2])  # at 40 too
    compute(steps, cache, text(20, 2))  # makes the two behind 40 go
    assert compute(steps, cache, text(31, 1)) == 30
    assert compute(steps, cache, [*document, 3]) == 40


def test_checkpoints_that_share_a_slot_make_room_together() -> None:
    """Before and after `accept`."""
    _, steps, cache = setup(sequences=1)
    sequence = steps.new_sequence()
    steps.verify([sequence], [[1, 2, 3]])
    steps.keep(sequence, 1)
    steps.verify([sequence], [[4, 5]])
    cache.insert(sequence, None)
    steps.keep(sequence, 2)
    cache.insert(sequence, None)
    assert len(cache) == 2
    steps.release(sequence)
    assert cache.make_room(2, 0)


def test_what_is_used_stays() -> None:
    _, steps, cache = setup(sequences=2)
    compute(steps, cache, text(20, 1))
    for seed in range(2, 30):
        compute(steps, cache, text(20, seed))
        assert compute(steps, cache, [*text(20, 1), seed % VOCAB]) == 20


def test_what_is_not_used_goes_in_the_end() -> None:
    _, steps, cache = setup(sequences=2)
    compute(steps, cache, text(60, 1))
    for seed in range(2, 50):
        compute(steps, cache, text(20, seed))
    assert compute(steps, cache, text(60, 1)) == 0


def test_no_room_for_a_copy_hands_the_checkpoint_out() -> None:
    _, steps, cache = setup(sequences=1, context=12)  # three pages
    compute(steps, cache, text(5))
    assert cache.find([*text(5), 1]).sequence.length == 5
    assert len(cache) == 1
    second = cache.find([*text(5), 1]).sequence
    assert (second.length, len(cache)) == (5, 0)
    cache.insert(second, None)  # no room: nothing is kept, nothing raised
    assert len(cache) == 0


def test_session_files_take_over_what_is_kept(tmp_path: Path) -> None:
    """At most four checkpoints: the shortest, and the newest ones."""
    logits = chaotic(VOCAB)
    model = FakeModel(VOCAB, logits, mostly_right(logits))
    cache = PrefixCache(model.steps(64, 6))
    for n in (20, 25, 33, 40, 47):
        compute(cache._steps, cache, text(n))
    cache.save(tmp_path / "session", MODEL, [*text(47), 1, 2])
    # The histories that states stand for are the model's: these are steps of another program with it.
    other = PrefixCache(model.steps(64, 3))
    with_row = other.find([1, 2])
    other.load(SessionFile(tmp_path / "session", MODEL, other._steps))
    assert [compute(other._steps, other, text(n)) for n in (21, 39, 47)] == [20, 33, 47]
    other._steps.release(with_row.sequence)
    other.clear()
    assert free(other._steps) == (6, 48)
    small = PrefixCache(model.steps(48, 1))
    small.load(SessionFile(tmp_path / "session", MODEL, small._steps))
    assert len(small) == 1, "there is no room for a copy of the page that two share in part"
    with pytest.raises(TrigraphError, match="the context holds 32"):
        SessionFile(tmp_path / "session", MODEL, model.steps(32, 1))


class Histories(RuleBasedStateMachine):
    """Requests on one cache; the fake model checks what each step reads."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.steps, _ = setup(sequences=3, context=16)
        self.cache = PrefixCache(self.steps)
        self.running: list[Sequence] = []
        self.seen: set[tuple[int, ...]] = set()

    @rule(prompt=TOKENS.filter(bool))
    def start(self, prompt: list[int]) -> None:
        if len(self.running) == 3:
            self.steps.release(self.running.pop(0))
        found = self.cache.find(prompt)
        length = found.sequence.length
        assert found.sequence.tokens == prompt[:length]
        assert not length or tuple(prompt[:length]) in self.seen
        assert (found.row is not None) == (length == len(prompt))
        if found.parted is not None:
            assert length < found.parted < len(prompt)
            assert any(seen[: found.parted] == tuple(prompt[: found.parted]) for seen in self.seen)
        if found.row is not None:
            np.testing.assert_array_equal(found.row.logits[0], self.model.next_logits(tuple(prompt)))
        self.running.append(found.sequence)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), new=TOKENS.filter(bool), row=st.booleans())
    def prefill(self, data: st.DataObject, new: list[int], row: bool) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        new = new[: 16 - sequence.length]
        if new and self.room(sequence, len(new)):
            result = self.steps.prefill([sequence], [new])
            self.insert(sequence, result if row else None)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), new=TOKENS.filter(bool), kept=st.integers(0, 8), draft=st.booleans())
    def verify(self, data: st.DataObject, new: list[int], kept: int, draft: bool) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        new = new[: min(8, 16 - sequence.length)]
        if new and self.room(sequence, len(new)):
            if draft:
                self.steps.draft([sequence], new[:1])
            self.steps.verify([sequence], [new])
            if kept % 2:
                self.insert(sequence, None)
            self.steps.keep(sequence, min(kept, len(new)))
            self.insert(sequence, None)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.seen.clear()

    def room(self, sequence: Sequence, count: int) -> bool:
        slots, pages = self.steps.state.room([sequence], [sequence.length + count])
        made = self.cache.make_room(slots, pages)
        assert self.steps.state.slots.free >= slots, "twice as many slots as sequences are always enough"
        return made

    def insert(self, sequence: Sequence, row: StepResult | None) -> None:
        self.cache.insert(sequence, row)
        self.seen.add(tuple(sequence.tokens))

    @invariant()
    def nothing_is_lost(self) -> None:
        state = self.steps.state
        held = [*self.running, *(node.value.sequence for node in self.cache._tree if node.value)]
        assert state.slots.size - state.slots.free == len({sequence.slot for sequence in held})
        pages = {page for sequence in held for page in sequence.pages[: sequence.page_count].tolist()}
        assert state.pages.size - state.pages.free == len(pages)

    def teardown(self) -> None:
        for sequence in self.running:
            self.steps.release(sequence)
        self.cache.clear()
        assert free(self.steps) == (self.steps.state.slots.size, self.steps.state.pages.size)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
