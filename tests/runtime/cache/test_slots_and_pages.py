"""Slots and pages: counted, reserved for a whole step or not at all, given back once."""

import pytest

from support.fakes.model import FakeModel
from support.fakes.steps import check, free, make, text
from trigraph.exporter.package.state_tensors import StateTensor
from trigraph.models.errors import TrigraphError
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.state.pool import Pool
from trigraph.runtime.state.sequence import Sequence, StateLimits
from trigraph.runtime.state.sizes import Budgets, StateSizes
from trigraph.runtime.state.state import State


def test_pool_counts_references_and_gives_the_lowest_number() -> None:
    pool = Pool(3, "things", "sequences")
    assert [pool.take(), pool.take()] == [0, 1]
    pool.share(0)
    pool.drop(0)
    assert pool.free == 1
    pool.drop(0)
    assert pool.take() == 0
    pool.take()
    with pytest.raises(TrigraphError, match="all 3 things are in use"):
        pool.take()


def crowded(sequences: int, forks: int, context: int = 64) -> tuple[FakeModel, Steps, list[Sequence]]:
    """One sequence of 5 tokens and forks of it, which share its slot."""
    model = make()
    steps = model.steps(context=context, sequences=sequences)
    parent = steps.new_sequence()
    steps.prefill([parent], [text(5)])
    family = [parent, *(steps.fork(parent) for _ in range(forks))]
    model.runs.clear()
    return model, steps, family


@pytest.mark.parametrize("step", ["verify", "prefill"])
def test_a_step_gets_all_of_its_slots_or_none(step: str) -> None:
    """Four that share a slot want four new ones, and three are free."""
    model, steps, family = crowded(sequences=2, forks=3)
    before = free(steps)
    assert before[0] == 3
    with pytest.raises(TrigraphError, match="4 state slots are needed and 3 of 4 are free"):
        getattr(steps, step)(family, [[1], [2], [3], [4]])
    assert (free(steps), model.runs) == (before, [])
    steps.release(family.pop())
    for sequence in family:
        check(model, steps, sequence, text(5))


@pytest.mark.parametrize("step", ["verify", "prefill", "draft"])
def test_a_step_gets_all_of_its_pages_or_none(step: str) -> None:
    """The first sequence could have its page: the step does not run, and both can go on when there is room again."""
    model = make()
    steps = model.steps(context=8, sequences=3)  # six pages of four tokens
    a, b, c, d = (steps.new_sequence() for _ in range(4))
    steps.prefill([c, d], [text(5, 3), text(4, 4)])
    steps.prefill([a, b], [text(4, 1), text(4, 2)])
    steps.verify([a], [[7]])  # takes the last page, and waits for `accept`
    steps.keep(a, 0)
    steps.verify([a], [[7]])
    before = free(steps)
    model.runs.clear()
    new = [1, 2] if step == "draft" else [[1, 2], [2]]
    with pytest.raises(TrigraphError, match="all 6 KV pages are in use"):
        getattr(steps, step)([a, b], new)
    assert (free(steps), model.runs) == (before, [])
    assert a.pending == ([] if step == "draft" else [7])
    steps.release(c)
    check(model, steps, a, text(4, 1))
    check(model, steps, b, text(4, 2))


def test_a_sequence_is_released_once() -> None:
    model, steps, (first,) = crowded(sequences=2, forks=0)
    steps.release(first)
    second = steps.new_sequence()
    before = free(steps)
    steps.release(first)  # the slot is another sequence's by now
    assert free(steps) == before
    with pytest.raises(TrigraphError, match="was released"):
        steps.verify([first], [[1]])
    with pytest.raises(TrigraphError, match="was released"):
        steps.fork(first)
    steps.prefill([second], [[1]])
    check(model, steps, second, [1])


def test_a_step_takes_each_sequence_once() -> None:
    model, steps, (sequence,) = crowded(sequences=2, forks=0)
    with pytest.raises(TrigraphError, match="takes each sequence once"):
        steps.verify([sequence, sequence], [[1], [2]])
    check(model, steps, sequence, text(5))


TENSORS = (
    StateTensor("gdn.0.state", "float32", ("slots", 1000), ("verify",)),
    StateTensor("kv.0.key", "float32", ("pages", 256, 4), ("verify",)),
)
SLOT, PAGE, LIMITS = 4000, 4096, StateLimits(2000, 256, 8, 16, 8)  # bytes; eight pages are a context


@pytest.mark.parametrize("pages", [10**10, 10**12, 10**30])
def test_state_that_memory_cannot_hold_is_refused_at_once(pages: int) -> None:
    with pytest.raises(TrigraphError, match=r"the state, 0 MB of slots and [\d,]+ MB of pages, needs [\d,]+ MB"):
        State(TENSORS, LIMITS, StateSizes(1, 2, pages))


@pytest.mark.parametrize(
    ("budgets", "free", "sizes"),
    [
        # Nothing is known, or all memory is taken at once: the least.
        (Budgets(), None, (2, 4, 16)),
        (Budgets(), 0, (2, 4, 8)),
        # A quarter for slots, two for each sequence; half for pages.
        (Budgets(), 10 * 4 * SLOT, (5, 10, 19)),
        (Budgets(), 1 << 40, (8, 256, 128)),
        (Budgets(sequences=100), 1 << 40, (100, 256, 1600)),
        (Budgets(sequences=200), 1 << 40, (200, 400, 3200)),
        (Budgets(sequences=3), None, (3, 6, 24)),
        (Budgets(sequences=1), 0, (1, 4, 8)),
        # What is given is taken; a sequence has two slots.
        # Checkpoints take half as much; a quarter of what is free at most.
        (Budgets(kv_memory=8 * PAGE), 1 << 40, (8, 16, 8)),
        (Budgets(kv_memory=100 * PAGE), 1 << 40, (8, 8 + 51, 100)),
        (Budgets(kv_memory=100 * PAGE), 10 * 4 * SLOT, (5, 10, 100)),
        (Budgets(kv_memory=10**6 * PAGE), 1 << 40, (8, 256, 10**6)),
        (Budgets(kv_memory=100 * PAGE - 1), None, (2, 2 + 51, 99)),
        (Budgets(kv_memory=8 * PAGE, sequences=1), None, (1, 1 + 4, 8)),
        (Budgets(kv_memory=10**6 * PAGE), None, (2, 256, 10**6)),
        (Budgets(checkpoint_memory=1), 1 << 40, (8, 16, 128)),
        (Budgets(checkpoint_memory=300 * SLOT), None, (2, 302, 16)),
    ],
)
def test_budgets(budgets: Budgets, free: int | None, sizes: tuple[int, int, int]) -> None:
    assert budgets.sizes(TENSORS, LIMITS, free) == StateSizes(*sizes)


WHOLE, LEAST = 262144, 32768  # tokens: 1024 and 128 pages


@pytest.mark.parametrize(
    ("budgets", "most", "free", "at_once", "context"),
    [
        (Budgets(), WHOLE, 2 * 1024 * PAGE, False, WHOLE),
        (Budgets(), WHOLE, 2 * 1024 * PAGE - 2, False, WHOLE // 2),
        (Budgets(), WHOLE, 2 * 256 * PAGE, False, WHOLE // 4),
        (Budgets(), WHOLE, 0, False, LEAST),
        (Budgets(), WHOLE, None, False, LEAST),
        (Budgets(share=0.5), WHOLE, 2 * 1024 * PAGE, False, WHOLE // 2),
        # A device takes the pages of all sequences at once, of two unless more are asked for.
        (Budgets(), WHOLE, 4 * 1024 * PAGE, True, WHOLE),
        (Budgets(sequences=4), WHOLE, 4 * 1024 * PAGE, True, WHOLE // 2),
        (Budgets(), WHOLE, None, True, LEAST),
        # What is given for keys and values counts, whatever is free.
        (Budgets(kv_memory=512 * PAGE), WHOLE, 0, False, WHOLE // 2),
        (Budgets(kv_memory=PAGE), WHOLE, 1 << 40, False, LEAST),  # and is refused then
        # No model's own context is divided below the least.
        (Budgets(), 40000, 0, False, LEAST),
        (Budgets(), 40000, 1 << 40, False, 40000),
        (Budgets(), 2048, 0, False, 2048),
    ],
)
def test_the_default_context(budgets: Budgets, most: int, free: int | None, at_once: bool, context: int) -> None:
    assert budgets.context(TENSORS, most, 256, free, at_once=at_once) == context


def test_double_buffers_count_twice() -> None:
    budgets = Budgets(kv_memory=100 * PAGE, checkpoint_memory=20 * SLOT)
    assert budgets.sizes(TENSORS, LIMITS, None, 2) == StateSizes(2, 12, 50)


def test_a_budget_that_holds_no_context_is_refused() -> None:
    tensor = StateTensor("kv.0.key", "float16", ("pages", 256, 4096), ("verify",))
    limits = StateLimits(32768, 256, 8, 16, 8)
    sentence = "kv_memory is 268,435,455 bytes, and a context of 32768 tokens takes 268,435,456; give as much, or load"
    with pytest.raises(TrigraphError, match=sentence):
        Budgets(kv_memory=(256 << 20) - 1).sizes((tensor,), limits, 1 << 40)
    for budgets in (Budgets(sequences=0), Budgets(kv_memory=-1), Budgets(checkpoint_memory=0)):
        with pytest.raises(TrigraphError, match="it must be 1 or more"):
            budgets.sizes((tensor,), limits, None)


def test_what_a_step_takes() -> None:
    """Slots that others still read, and pages that are missing."""
    _, steps, (a, b) = crowded(sequences=4, forks=1)
    c = steps.new_sequence()
    assert steps.state.room([a, b, c], [8, 9, 1]) == (2, 0 + 1 + 1)
    steps.verify([a], [[1]])
    assert steps.state.room([a, b, c], [8, 8, 0]) == (0, 0)
