"""Conditions that should not matter to an answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, cycle, islice

from trigraph.runtime.audit.answer import Answer
from trigraph.runtime.audit.asking import Asking, NotPossibleError, OutOfTimeError
from trigraph.runtime.audit.client import ServerError
from trigraph.runtime.audit.plan import Case, Plan

Found = tuple[Case, Answer | ServerError]
_FEW = 4  # requests at once where the order does not matter
_FILLER = "The {} chapter of the report, with {} pages, is about rivers, bridges and the weather. "


@dataclass(frozen=True)
class Condition:
    """A way of asking. `ask` yields answers as they come, in any order; a case may have several, or none."""

    name: str
    ask: Callable[[Asking, Sequence[Case]], Iterator[Found]]
    greedy_only: bool = False


def conditions(plan: Plan) -> list[Condition]:
    """Those of a plan, the most telling ones first."""
    several = [Condition(f"among {others} others", _among(others)) for others in plan.companions]
    return [
        Condition("again", _one_by_one),
        *several,
        Condition("streamed", _streamed),
        Condition("after its beginning", _after_shorter),
        Condition("after a longer one", _after_longer),
        Condition("built up in turns", _in_turns),
        Condition("beside long prompts", _beside_long_prompts),
        Condition("token by token", _token_by_token, greedy_only=True),
        Condition("as a rendered prompt", _rendered),
        Condition(f"after {plan.others} others", _after_others),
        Condition(f"after {plan.idle:.0f} s idle", _after_idling),
    ]


def _one_by_one(asking: Asking, cases: Sequence[Case]) -> Iterator[Found]:
    for case in cases:
        yield case, asking.ask(case)


def _streamed(asking: Asking, cases: Sequence[Case]) -> Iterator[Found]:
    for case in cases:
        yield case, asking.ask(case, stream=True)


def _among(others: int) -> Callable[[Asking, Sequence[Case]], Iterator[Found]]:
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


def _after_shorter(asking: Asking, cases: Sequence[Case]) -> Iterator[Found]:
    for case in cases:
        asking.warm(_part(case.prompt, 0.6))
        yield case, asking.ask(case)


def _after_longer(asking: Asking, cases: Sequence[Case]) -> Iterator[Found]:
    for case in cases:
        asking.warm(f"{case.prompt} And that was only the beginning of it, as everybody knew.")
        yield case, asking.ask(case)


def _in_turns(asking: Asking, cases: Sequence[Case]) -> Iterator[Found]:
    for case in cases:
        for part in (0.3, 0.6, 0.9):
            asking.warm(_part(case.prompt, part))
        yield case, asking.ask(case)


def _after_others(asking: Asking, cases: Sequence[Case]) -> Iterator[Found]:
    with ThreadPoolExecutor(_FEW) as pool:
        texts = [_filler(number, 1000) for number in range(asking.plan.others)]
        list(pool.map(asking.warm, texts))
    yield from _one_by_one(asking, cases)


def _after_idling(asking: Asking, cases: Sequence[Case]) -> Iterator[Found]:
    asking.sleep(asking.plan.idle)
    yield from _one_by_one(asking, cases)


def _beside_long_prompts(asking: Asking, cases: Sequence[Case]) -> Iterator[Found]:
    """A thread has long prompts computed, one after the other, none of which is in a cache."""
    ended, size = threading.Event(), asking.plan.long_prompt
    for number in range(8):
        if asking.warm(_filler(1000 + number, size)):
            break
        size //= 2  # longer than the server's context
    else:
        raise NotPossibleError("the server takes no long prompts")

    def run() -> None:
        with suppress(OutOfTimeError):
            for number in count(2000):
                if ended.is_set():
                    return
                if not asking.warm(_filler(number, size)):
                    time.sleep(1)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield from _one_by_one(asking, cases)
    finally:
        ended.set()
        thread.join()


def _token_by_token(asking: Asking, cases: Sequence[Case]) -> Iterator[Found]:
    """Asks for one token, appends it to the prompt, and asks again.

    Prompts are sent as ids, of the server's own tokenizer: a text may be tokenised otherwise when it is cut.
    """
    if asking.client.api == "chat":
        raise NotPossibleError("needs /v1/completions")
    if asking.tokenize("Zebras") is None:
        raise NotPossibleError("needs /tokenize")
    for case in cases:
        if (found := _stepwise(asking, case)) is not None:
            yield case, found


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
        whole = Answer(whole.text + answer.text, whole.tokens + answer.tokens, whole.logprobs + answer.logprobs)
        following = asking.tokenize(case.prompt + whole.text)
        if following is None or following[:-1] != ids:
            break
        ids = following
    return asking.completed(case, whole) if whole.text else None


def _rendered(asking: Asking, cases: Sequence[Case]) -> Iterator[Found]:
    """Sends the text that the server's template makes of the messages."""
    if asking.client.api != "chat":
        raise NotPossibleError("needs --api chat")
    for case in cases:
        try:
            body = {"messages": [{"role": "user", "content": case.prompt}]}
            prompt = asking.client.post("/apply-template", body)["prompt"]
        except (ServerError, KeyError) as error:
            raise NotPossibleError("needs /apply-template") from error
        yield case, asking.ask(case, prompt=prompt, api="completions")


def _part(text: str, share: float) -> str:
    return text[: max(1, round(share * len(text)))]


def _filler(number: int, size: int) -> str:
    """A text of about `size` characters that begins like no other."""
    sentence = f"Number {number}. " + "".join(_FILLER.format(number + i, number * i) for i in range(1 + size // 80))
    return sentence[:size]
