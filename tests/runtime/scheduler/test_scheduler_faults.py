"""Requests that fail, fail alone: the others get the answers that they get alone, and no state is lost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.fakes.engine import assert_settled
from support.fakes.rounds import alone, asked, finish, fresh, options, queued, run_round, scheduler, steady, tokens
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Sampling
from trigraph.runtime.device.memory import RetryError
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.state.sequence import Sequence

__all__ = ["steady"]
pytestmark = pytest.mark.usefixtures("steady")

BAD = 2
"""Number of the request that fails."""


def crowd(engine: Engine, draft: bool = True) -> list[Handle]:
    return [queued(engine, tokens(14, n), options(n, 16, speculate=draft, draft_tokens=3)) for n in range(4)]


def assert_others_answered(engine: Engine, requests: list[Handle], bad: int | None = BAD) -> None:
    for n, request in enumerate(requests):
        expected = alone(tokens(14, n), options(n, 16))
        if n != bad:
            assert request.error is None
            assert request.ids == expected
        else:
            assert request.ids == expected[: len(request.ids)]
    assert not scheduler(engine).active
    assert_settled(engine)


@pytest.mark.parametrize("after", [0, 1, 5, 15])
@pytest.mark.parametrize("error", [TrigraphError, ValueError, MemoryError])
def test_a_sampler_that_fails(after: int, error: type[Exception]) -> None:
    """At the first token, and at later ones."""
    engine, _ = fresh()
    requests = crowd(engine)
    picked, pick = [], asked(requests[BAD]).sampler.pick

    def failing(*arguments: object) -> int:
        picked.append(1)
        if len(picked) > after:
            raise error("it fails")
        return pick(*arguments)  # type: ignore[arg-type]

    asked(requests[BAD]).sampler.pick = failing  # type: ignore[method-assign,assignment]
    finish(engine, requests)
    assert_others_answered(engine, requests)
    with pytest.raises(error, match="it fails"):
        requests[BAD].result()
    assert len(requests[BAD].ids) == after


@pytest.mark.parametrize("method", ["push", "forced"])
def test_a_completion_or_a_constraint_that_fails(method: str) -> None:
    engine, _ = fresh()
    requests = crowd(engine)

    def failing(*arguments: object) -> None:
        raise RuntimeError("it fails")

    setattr(requests[BAD] if method == "push" else asked(requests[BAD]).sampler, method, failing)
    finish(engine, requests)
    assert_others_answered(engine, requests)
    with pytest.raises(RuntimeError, match="it fails"):
        requests[BAD].result()


@pytest.mark.parametrize("step", ["prefill", "verify", "draft"])
def test_a_step_that_fails_with_one_request_in_it(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = fresh()
    requests = crowd(engine)
    works, failures = getattr(engine.steps, step), []

    def failing(sequences: list[Sequence], *arguments: object) -> object:
        bad = requests[BAD].request
        if bad is not None and bad.sequence in sequences and len(requests[BAD].ids) != 1:
            failures.append(len(sequences))
            raise RuntimeError("this request breaks the step")
        return works(sequences, *arguments)

    monkeypatch.setattr(engine.steps, step, failing)
    finish(engine, requests)
    assert failures[-1] == 1
    with pytest.raises(RuntimeError, match="breaks the step"):
        requests[BAD].result()
    assert_others_answered(engine, requests)


@pytest.mark.parametrize("number", range(12))
def test_a_step_that_may_be_tried_again(number: int) -> None:
    """Nobody fails, not even a request that was alone in it; twice, as long as there is something to give back."""
    engine, model = fresh()
    seen: list[int] = []

    def watch(graph: str, pieces: list[list[int]]) -> None:
        seen.append(len(pieces))
        if len(seen) in (number + 1, number + 3):
            raise RetryError("no memory, but now there is some")

    model.watch = watch
    request = queued(engine, tokens(14, 1), options(1, 16))
    finish(engine, [request])
    assert len(seen) > number + 2
    assert request.error is None and request.ids == alone(tokens(14, 1), options(1, 16))
    assert_settled(engine)


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("number", range(0, 25, 2))
def test_a_step_that_fails_once(number: int, draft: bool) -> None:
    """Whichever it is, nobody fails who shared it with others; one that was alone in it does."""
    engine, model = fresh(draft)
    seen: list[int] = []

    def watch(graph: str, pieces: list[list[int]]) -> None:
        seen.append(len(pieces))
        if len(seen) == number + 1:
            raise RuntimeError("once")

    model.watch = watch
    requests = crowd(engine, draft)
    finish(engine, requests)
    assert len(seen) > number
    failed = [n for n, request in enumerate(requests) if request.error is not None]
    assert len(failed) <= (seen[number] == 1)
    assert_others_answered(engine, requests, failed[0] if failed else None)


@pytest.mark.parametrize("method", ["find", "make_room"])
def test_a_cache_that_fails_at_the_start(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say, for a damaged file: the request fails whose prompt it was looked for."""
    engine, _ = fresh()
    works, find, found = getattr(engine.cache, method), engine.cache.find, list[list[int]]()

    def failing(*arguments: object, **others: object) -> object:
        bad = arguments[0] == tokens(14, BAD) if method == "find" else found[-1:] == [tokens(14, BAD)]
        if bad:
            found.clear()
            raise AssertionError("a damaged file")
        return works(*arguments, **others)

    def watched(prompt: list[int], *images: Any, **others: Any) -> object:
        result = find(prompt, *images, **others)
        found.append(prompt)
        return result

    monkeypatch.setattr(engine.cache, "find", watched)
    monkeypatch.setattr(engine.cache, method, failing)
    requests = crowd(engine)
    finish(engine, requests)
    assert_others_answered(engine, requests)
    with pytest.raises(AssertionError, match="a damaged file"):
        requests[BAD].result()


def test_all_steps_fail() -> None:
    """A device that is lost: every request ends with the error, and none waits for ever."""
    engine, model = fresh()
    requests = [queued(engine, tokens(14, n), options(n)) for n in range(9)]
    for _ in range(3):
        run_round(engine)
    model.fail = True
    finish(engine, requests)
    for request in requests:
        with pytest.raises(RuntimeError, match="a step failed"):
            request.result()
    model.fail = False
    again = crowd(engine)
    finish(engine, again)
    assert_others_answered(engine, again, None)


def test_what_is_done_at_the_end_fails(tmp_path: Path) -> None:
    """A file that cannot be written fails its request, whose text is there."""
    engine, _ = fresh()

    def failing(tokens: list[int]) -> None:
        raise OSError("disk full")

    requests = crowd(engine)
    asked(requests[BAD]).finish = failing
    finish(engine, requests)
    with pytest.raises(OSError, match="disk full"):
        requests[BAD].result()
    assert len(requests[BAD].ids) == 16
    assert_others_answered(engine, requests)


@pytest.mark.parametrize("prompt", [[999999, 1], [1, 2, -3], [*range(40), 999]])
def test_token_ids_that_the_model_does_not_have(prompt: list[int]) -> None:
    engine, model = fresh()
    with pytest.raises(TrigraphError, match="token ids must be from 0 to 257"):
        queued(engine, prompt, options())
    assert model.runs == []


def test_a_first_token_that_fails_beside_a_step_that_does() -> None:
    """Two prompts end in one step: the sampler of one fails, and then what follows for the other."""
    engine, _ = fresh()
    requests = [queued(engine, tokens(6, n), options(n, 16)) for n in range(2)]
    asked(requests[0]).sampler.pick = None  # type: ignore[method-assign,assignment]
    insert, calls = engine.cache.insert, []

    def failing(*arguments: object) -> None:
        calls.append(1)
        if len(calls) == 3:  # the first one's prompt and end, the second one's prompt
            raise RuntimeError("once")
        insert(*arguments)  # type: ignore[arg-type]

    engine.cache.insert = failing  # type: ignore[method-assign,assignment]
    finish(engine, requests)
    assert isinstance(requests[0].error, TypeError)
    assert requests[1].ids == alone(tokens(6, 1), options(1, 16))
    assert_settled(engine)


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_logits_that_are_no_numbers(temperature: float) -> None:
    """Of one request: the rows of the others are as good as ever."""
    engine, model = fresh()
    poisoned, logits = tuple(tokens(14, BAD)), model.next_logits

    def with_nan(history: tuple[int, ...]) -> np.ndarray:
        row = logits(history)
        return np.full_like(row, np.nan) if history[:14] == poisoned and len(history) > 17 else row

    model.next_logits = with_nan
    requests = crowd(engine)
    requests[BAD].cancel()
    wanted = Options(Sampling(temperature=temperature), max_tokens=16, ignore_eos=True)
    requests[BAD] = queued(engine, [*poisoned], wanted)
    finish(engine, requests)
    assert isinstance(requests[BAD].error, TrigraphError)
    assert "not finite numbers" in str(requests[BAD].error)
    for n in {0, 1, 2, 3} - {BAD}:
        assert requests[n].ids == alone(tokens(14, n), options(n, 16))
    assert_settled(engine)
