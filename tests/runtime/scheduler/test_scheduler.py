"""Rounds on the fake model: who is served when, with the answers that each request gets alone."""

import time

import pytest

from support.fakes.engine import assert_settled
from support.fakes.rounds import (
    CONTEXT,
    alone,
    cut_text,
    finish,
    fresh,
    options,
    queued,
    run_round,
    scheduler,
    steady,
    tokens,
)
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Options, QueueFullError
from trigraph.runtime.requests.handle import Handle

__all__ = ["steady"]
pytestmark = pytest.mark.usefixtures("steady")


def first_tokens(requests: list[Handle]) -> list[int]:
    """Numbers of the requests in the order in which they had their first token."""
    return sorted(range(len(requests)), key=lambda i: requests[i].first_token or 0.0)


def test_first_come_first_served() -> None:
    engine, _ = fresh(sequences=2)
    requests = [queued(engine, tokens(9, n), options(n)) for n in range(6)]
    for _ in range(500):
        run_round(engine)
        started = [request.started is not None for request in requests]
        assert started == sorted(started, reverse=True)
        assert len(scheduler(engine).active) <= 2
    assert first_tokens(requests) == [0, 1, 2, 3, 4, 5]
    assert [request.ids for request in requests] == [alone(tokens(9, n), options(n)) for n in range(6)]
    assert_settled(engine)


def test_higher_priorities_first() -> None:
    engine, _ = fresh(sequences=1)
    priorities = [0, 1, 0, 2, 1, -1]
    requests = [queued(engine, tokens(5, n), options(n), priority=p) for n, p in enumerate(priorities)]
    finish(engine, requests)
    assert first_tokens(requests) == [3, 1, 4, 0, 2, 5]


@pytest.mark.parametrize("draft", [False, True])
def test_prompts_come_in_while_others_decode(draft: bool) -> None:
    """Nobody waits: each round brings every request that decodes on by a token at least."""
    engine, _ = fresh(draft)
    first = queued(engine, tokens(4), options(1, 30))
    run_round(engine)
    later = [queued(engine, tokens(40, n), options(n, 20)) for n in (1, 2)]
    while not all(request.done for request in later):
        before = len(first.ids), [request.progress[0] for request in later]
        run_round(engine)
        assert first.done or len(first.ids) > before[0]
    finish(engine, [first])
    assert first.ids == alone(tokens(4), options(1, 30))
    assert [request.ids for request in later] == [alone(tokens(40, n), options(n, 20)) for n in (1, 2)]
    assert_settled(engine)


def test_a_bound_on_those_that_wait() -> None:
    engine, _ = fresh(sequences=3, max_waiting=2)
    requests = [queued(engine, tokens(4, n), options(n)) for n in range(3)]  # the next round takes them all
    requests += [queued(engine, tokens(4, n), options(n)) for n in (3, 4)]
    late = engine.generate(tokens(4, 5), options(5))
    for _ in range(2):
        with pytest.raises(QueueFullError, match="2 requests wait already; try again later, or raise max_waiting"):
            engine.submit(tokens(4, 5))
        with pytest.raises(QueueFullError):
            late.result()
        run_round(engine)
        assert len(scheduler(engine).active) == 3
    finish(engine, requests)
    assert late.result(5) == cut_text(engine.tokenizer, alone(tokens(4, 5), options(5)))
    assert_settled(engine)


@pytest.mark.parametrize("rounds", range(8))
def test_cancels_at_any_time(rounds: int) -> None:
    """Waiting, in the prompt, decoding: it ends in the next round, and others do not notice."""
    engine, _ = fresh(sequences=3)
    requests = [queued(engine, tokens(40, n), options(n)) for n in range(5)]
    for _ in range(rounds):
        run_round(engine)
    cancelled = requests[::2]
    done = [request.done for request in cancelled]
    for request in cancelled:
        request.cancel()
        request.cancel()
    run_round(engine)
    for request, before in zip(cancelled, done, strict=True):
        assert request.done
        assert before or request.stats.finish_reason == "cancelled"
        assert request.result() == request.text
    finish(engine, requests)
    for n, request in enumerate(requests):
        assert request.ids == alone(tokens(40, n), options(n))[: len(request.ids)]
        assert n % 2 == 0 or len(request.ids) == 12
    assert_settled(engine)


@pytest.mark.parametrize("rounds", range(8))
def test_deadlines_at_any_time(rounds: int) -> None:
    engine, _ = fresh(sequences=3)
    requests = [queued(engine, tokens(40, n), options(n), timeout=1000 + n) for n in range(5)]
    for _ in range(rounds):
        run_round(engine)
    for request in requests[::2]:
        if request.request is not None:
            request.request.deadline = time.monotonic()
    done = [request.done for request in requests[::2]]
    run_round(engine)
    for request, before in zip(requests[::2], done, strict=True):
        assert before or request.stats.finish_reason == "timeout"
        assert request.done
    finish(engine, requests)
    assert [len(request.ids) for request in requests[1::2]] == [12, 12]
    assert_settled(engine)


def test_a_deadline_in_the_past() -> None:
    engine, _ = fresh()
    request = queued(engine, tokens(4), options(), timeout=0)
    run_round(engine)
    assert (request.result(), request.stats.finish_reason) == ("", "timeout")


@pytest.mark.parametrize(
    ("name", "value"), [("priority", "high"), ("priority", 1.5), ("timeout", "1"), ("timeout", float("nan"))]
)
def test_priorities_and_timeouts_of_other_types_are_refused(name: str, value: object) -> None:
    engine, _ = fresh()
    with pytest.raises(TrigraphError, match=f"{name} is .*; it must be"):
        engine.submit(tokens(4), **{name: value})  # type: ignore[arg-type]


def test_what_is_cancelled_before_it_begins_never_does() -> None:
    engine, _ = fresh()
    request, other = engine.generate(tokens(4), options()), queued(engine, tokens(4), options())
    request.cancel()
    finish(engine, [other])
    assert request.run() == ""
    assert request.stats.finish_reason == "cancelled"
    assert_settled(engine)


@pytest.mark.parametrize("sizes", [{"pages": 24}, {"pages": 16}, {"slots": 4}, {"slots": 5, "pages": 20}])
@pytest.mark.parametrize("draft", [False, True])
def test_preempted_requests_get_their_answers(draft: bool, sizes: dict[str, int]) -> None:
    engine, _ = fresh(draft, **sizes)
    prompts = [tokens(10 + n, n) for n in range(8)]
    requests = [queued(engine, prompt, options(n, 40)) for n, prompt in enumerate(prompts)]
    finish(engine, requests)
    assert [request.ids for request in requests] == [alone(p, options(n, 40)) for n, p in enumerate(prompts)]
    if "pages" in sizes:
        assert sum(request.stats.preemptions for request in requests)
    assert_settled(engine)


def test_the_youngest_gives_way() -> None:
    engine, _ = fresh(pages=16)
    requests = [queued(engine, tokens(8, n), options(n, 50), priority=int(n == 3)) for n in range(4)]
    finish(engine, requests)
    assert [request.stats.preemptions > 0 for request in requests[3:]] == [False]
    ended = sorted(range(4), key=lambda n: requests[n].rounds[-1].ended)
    assert ended == [3, 0, 1, 2]


def test_prompts_are_cut_at_checkpoints() -> None:
    engine, model = fresh(draft=False)
    request = queued(engine, tokens(40), options(max_tokens=1), checkpoints={5, 20, 33})
    finish(engine, [request])
    assert model.runs == [("prefill", [n]) for n in (5, 15, 13, 7)]
    for length in (5, 20, 33):
        found = engine.cache.find([*tokens(40)[:length], 0])
        assert found.sequence.length == length
        engine.steps.release(found.sequence)
    assert_settled(engine)


def test_prompts_wait_for_the_beginning_they_share() -> None:
    """The system prompt of many clients at once is computed once."""
    engine, model = fresh(draft=False)
    shared = tokens(32)
    prompts = [[*shared, *tokens(4, n)] for n in range(1, 5)]
    requests = [queued(engine, prompt, options(n)) for n, prompt in enumerate(prompts)]
    finish(engine, requests)
    assert [request.ids for request in requests] == [alone(p, options(n)) for n, p in enumerate(prompts)]
    assert [request.reused for request in requests] == [0, 32, 32, 32]
    assert sum(sum(sizes) for graph, sizes in model.runs if graph == "prefill") == 32 + 4 * 4


def test_the_same_prompt_at_once_is_computed_once() -> None:
    engine, model = fresh(draft=False)
    requests = [queued(engine, tokens(40), options(n)) for n in range(4)]
    finish(engine, requests)
    assert [request.ids for request in requests] == [alone(tokens(40), options(n)) for n in range(4)]
    assert sum(sum(sizes) for graph, sizes in model.runs if graph == "prefill") == 40


def test_a_prompt_that_is_known_costs_no_step() -> None:
    engine, model = fresh()
    finish(engine, [queued(engine, tokens(40), options())])
    model.runs.clear()
    request = queued(engine, tokens(40), options(7))
    finish(engine, [request])
    assert request.ids == alone(tokens(40), options(7))
    assert "prefill" not in {graph for graph, _ in model.runs}
    assert (request.stats.prompt_tokens, request.stats.reused_tokens) == (0, 40)


@pytest.mark.parametrize("most", [0, 1])
def test_one_token_after_a_prompt_that_is_known_costs_no_step(most: int) -> None:
    """It is complete before the round decodes, and no companion of those that do."""
    engine, model = fresh()
    finish(engine, [queued(engine, tokens(40), options())])
    other = queued(engine, tokens(9, 1), options(1))
    run_round(engine)
    model.runs.clear()
    request = queued(engine, tokens(40), options(7, most, draft_tokens=3))
    run_round(engine)
    assert request.done
    assert request.ids == alone(tokens(40), options(7, most))
    assert {len(sizes) for _, sizes in model.runs} == {1}
    finish(engine, [other])
    assert other.ids == alone(tokens(9, 1), options(1))
    assert_settled(engine)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    ("length", "most", "reason"), [(20, 0, "length"), (CONTEXT, None, "context"), (CONTEXT - 1, 9, "context")]
)
def test_completions_of_nothing_or_next_to_nothing(length: int, most: int | None, reason: str, cached: bool) -> None:
    engine, _ = fresh()
    wanted = Options(options().sampling, max_tokens=most, ignore_eos=True)
    if cached:
        finish(engine, [queued(engine, tokens(length), wanted)])
    request, other = (queued(engine, tokens(length, n), wanted if n == 0 else options()) for n in (0, 1))
    finish(engine, [request, other])
    assert (request.ids, request.stats.finish_reason) == (alone(tokens(length), wanted), reason)
    assert_settled(engine)


@pytest.mark.parametrize("length", [0, CONTEXT + 1])
def test_prompts_that_can_never_fit_are_refused_at_once(length: int) -> None:
    engine, _ = fresh()
    with pytest.raises(TrigraphError, match=f"the prompt has {length} tokens; it must have 1 to 64"):
        engine.submit(tokens(length))


def test_rounds_with_nothing_to_do() -> None:
    engine, model = fresh()
    run_round(engine)
    assert model.runs == []


def test_state_that_others_hold_is_waited_for_by_nobody() -> None:
    """Where a loop of the user's own holds all slots, or most pages, a request fails with the numbers."""
    engine, _ = fresh(sequences=1)
    held = [engine.steps.new_sequence() for _ in range(2)]
    with pytest.raises(TrigraphError, match="all 2 state slots are in use"):
        engine.generate(tokens(4), options()).run()
    engine.steps.release(held.pop())
    engine.steps.prefill(held, [tokens(60)])
    with pytest.raises(TrigraphError, match="4 KV pages are needed and 1 of 16 are free"):
        engine.generate(tokens(40), options()).run()
    engine.steps.release(held.pop())
    assert engine.generate(tokens(4), options()).run()
    assert_settled(engine)
