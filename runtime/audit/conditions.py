"""Conditions that should not matter to an answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle, islice

from trigraph.runtime.audit.answer import Answer
from trigraph.runtime.audit.asking import Asking, NotPossibleError, OutOfTimeError
from trigraph.runtime.audit.comparison import PARTS
from trigraph.runtime.audit.connection import ServerError
from trigraph.runtime.audit.plan import GREEDY, Case, Plan

Found = tuple[Case, Answer | ServerError]
Ask = Callable[[Asking, Sequence[Case]], Iterator[Found]]
"""Yields answers as they come, in any order; a case may have several, or none."""

_FEW = 4  # requests at once where the order does not matter
_ENDING = " And that was only the beginning of it, as everybody knew."
_FILLER = "The {} chapter of the report, with {} pages, is about rivers, bridges and the weather. "


@dataclass(frozen=True)
class Condition:
    """A way of asking."""

    name: str
    ask: Ask
    greedy_only: bool = False
    waits: float = 0.0
    """Seconds without any request, which are set aside for it."""


def conditions(plan: Plan) -> list[Condition]:
    """The conditions of a plan, the most telling ones first."""
    several = [Condition(f"among {others} others", _among(others)) for others in plan.companions]
    return [
        Condition("again", _one_by_one),
        *several,
        Condition("streamed", partial(_one_by_one, stream=True)),
        Condition("after its beginning", _after(lambda prompt: [_part(prompt, 0.6)])),
        Condition("after a longer one", _after(lambda prompt: [prompt + _ENDING])),
        Condition("built up in turns", _after(lambda prompt: [_part(prompt, part) for part in (0.3, 0.6, 0.9)])),
        Condition("beside long prompts", _beside_long_prompts),
        Condition("token by token", _token_by_token, greedy_only=True),
        Condition("as a rendered prompt", _rendered),
        Condition(f"after {plan.others} others", _after_others),
        Condition(f"after {plan.idle:.0f} s idle", _after_idling, waits=plan.idle),
    ]


def _one_by_one(asking: Asking, cases: Sequence[Case], *, stream: bool = False) -> Iterator[Found]:
    for case in cases:
        yield case, asking.ask(case, stream=stream)


def _among(others: int) -> Ask:
    """All cases, each the others' company: `others` + 1 at a time."""

    def ask(asking: Asking, cases: Sequence[Case]) -> Iterator[Found]:
        asked = list(islice(cycle(cases), max(len(cases), 2 * (others + 1))))
        yield from _at_once(asking, asked, others + 1)

    return ask


def _at_once(asking: Asking, cases: Sequence[Case], workers: int) -> Iterator[Found]:
    """Asks in order, `workers` at a time."""
    with ThreadPoolExecutor(workers) as pool:
        try:
            answers = [pool.submit(asking.ask, case) for case in cases]
            for case, answer in zip(cases, answers, strict=True):
                yield case, answer.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _after(before: Callable[[str], list[str]]) -> Ask:
    """Asks each case after other prompts. One that the server refuses, as too long perhaps, leaves its case out."""

    def ask(asking: Asking, cases: Sequence[Case]) -> Iterator[Found]:
        for case in cases:
            failures = [failure for prompt in before(case.prompt) if (failure := asking.warm(prompt)) is not None]
            if not failures:
                yield case, asking.ask(case)
            elif not failures[0].refused:
                yield case, failures[0]

    return ask


def _after_others(asking: Asking, cases: Sequence[Case]) -> Iterator[Found]:
    with ThreadPoolExecutor(_FEW) as pool:
        others = [_filler(number, 1000) for number in range(asking.plan.others)]
        failures = [*pool.map(asking.warm, others)]
    if failures and all(failure is not None and failure.refused for failure in failures):
        raise NotPossibleError("the server refuses the other prompts")
    yield from ((Case(prompt, GREEDY), failure) for prompt, failure in zip(others, failures, strict=True) if failure)
    yield from _one_by_one(asking, cases)


def _after_idling(asking: Asking, cases: Sequence[Case]) -> Iterator[Found]:
    asking.sleep(asking.plan.idle)
    yield from _one_by_one(asking, cases)


def _beside_long_prompts(asking: Asking, cases: Sequence[Case]) -> Iterator[Found]:
    """A thread has long prompts computed, one after the other, none of which is in a cache."""
    ended, size = threading.Event(), asking.plan.long_prompt
    for number in range(8):
        failure = asking.warm(_filler(1000 + number, size))
        if failure is None or not failure.refused:
            break
        size //= 2  # longer than the server's context
    else:
        raise NotPossibleError("the server takes no long prompts")
    failures: dict[str, Found] = {}

    def run() -> None:
        with suppress(OutOfTimeError):
            for number in count(2000):
                if ended.is_set():
                    return
                prompt = _filler(number, size)
                if (failure := asking.warm(prompt)) is not None:
                    failures[failure.what] = Case(prompt, GREEDY), failure
                    time.sleep(1)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield from _one_by_one(asking, cases)
    finally:
        ended.set()
        thread.join()
    yield from failures.values()


def _token_by_token(asking: Asking, cases: Sequence[Case]) -> Iterator[Found]:
    """Asks for one token, appends it to the prompt, and asks again.

    Prompts are sent as ids, of the server's own tokenizer: a text may be tokenised otherwise when it is cut.
    """
    if asking.client.api == "chat":
        raise NotPossibleError("needs /v1/completions")
    if asking.tokenize("Zebras") is None:
        raise NotPossibleError("needs /tokenize")
    for case in cases:
        if (outcome := _stepwise(asking, case)) is not None:
            yield case, outcome


def _stepwise(asking: Asking, case: Case) -> Answer | ServerError | None:
    """An answer of single tokens, completed by the expected one; None if its tokens have no text of their own."""
    ids, whole = asking.tokenize(case.prompt), Answer("")
    for _ in range(min(asking.plan.steps, asking.plan.tokens)):
        if ids is None:
            break
        answer = asking.ask(case, prompt=ids, tokens=1)
        if isinstance(answer, ServerError):
            return answer
        if not answer.text:
            break  # the end, or a part of a character
        whole = whole.followed_by(answer)
        following = asking.tokenize(case.prompt + whole.text)
        if following is None or following[:-1] != ids:
            break
        ids = following
    return whole.completed(asking.expected[case]) if whole.text else None


def _rendered(asking: Asking, cases: Sequence[Case]) -> Iterator[Found]:
    """Sends the text that the server's template makes of the messages."""
    if asking.client.api != "chat":
        raise NotPossibleError("needs --api chat")
    for case in cases:
        expected = asking.expected[case]
        if expected.reasoning:
            raise NotPossibleError("needs answers without reasoning")
        body = {"messages": [{"role": "user", "content": case.prompt}]}
        try:
            prompt = asking.client.json("/apply-template", body).get("prompt")
        except ServerError:
            prompt = None
        if not isinstance(prompt, str):
            raise NotPossibleError("needs /apply-template")
        answer = asking.ask(case, prompt=prompt, api="completions")
        if isinstance(answer, ServerError) and answer.refused:
            raise NotPossibleError(f"needs /v1/completions, which answers: {answer}")
        if isinstance(answer, Answer):  # the two routes have not the same parts
            answer = answer.where_given(expected, *PARTS)
        yield case, answer


def _part(text: str, share: float) -> str:
    return text[: max(1, round(share * len(text)))]


def _filler(number: int, size: int) -> str:
    """A text of about `size` characters that begins like no other."""
    sentence = f"Number {number}. " + "".join(_FILLER.format(number + i, number * i) for i in range(1 + size // 80))
    return sentence[:size]
