"""Grammars that would end the process, or keep it busy, are refused with a sentence, and hold up nobody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.fakes.engine import engine_of, scripted
from support.texts.hostile_grammars import GRAMMARS, WITHIN, chain, fan, rules
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Grammar, JsonSchema, Regex
from trigraph.runtime.limited.process import LimitedProcess
from trigraph.runtime.sampling import guidance, semaphore, trial
from trigraph.runtime.sampling.semaphore import BusyError, Semaphore
from trigraph.runtime.sampling.trial import Trials, Verdict

pytest.importorskip("llguidance", reason="llguidance is not installed: no constraints")

EXPLODING = "start: R\nR: " + " & ".join(f"/(?s:.*)w{i}(?s:.*)/" for i in range(40))


@pytest.mark.parametrize("keyword", WITHIN)
def test_long_chains_of_references_are_refused(keyword: str) -> None:
    with pytest.raises(TrigraphError, match=r"references lead from .* more than 100 deep"):
        JsonSchema(json.dumps(chain(keyword)))
    JsonSchema(json.dumps(chain(keyword, 90)))


@pytest.mark.parametrize("keyword", WITHIN.keys() - {"$ref", "oneOf"})
def test_what_overflows_the_stack_is_refused(keyword: str) -> None:
    """No chain by the rule above: each of these schemas is one reference away."""
    with pytest.raises(TrigraphError, match="it is nested too deeply or too large to compile"):
        JsonSchema(json.dumps(fan(keyword)))


@pytest.mark.parametrize("kind", GRAMMARS)
def test_hostile_grammars_are_refused(kind: str) -> None:
    with pytest.raises(TrigraphError, match=r"more than 1,000 rules|more than 100 deep|nested too deeply"):
        Grammar(GRAMMARS[kind])


def test_empty_lines_take_no_time() -> None:
    """A search of each line's beginning in all lines behind it took minutes, in which no other thread ran."""
    started = time.thread_time()
    with pytest.raises(TrigraphError, match="grammar cannot be used"):
        Grammar(100_000 * "\n" + "x")
    assert time.thread_time() - started < 10


@pytest.mark.parametrize("name", ["r", "R"])
def test_what_a_trial_lets_through_is_compiled(name: str) -> None:
    """The thread that compiles has more stack than the trial."""
    engine, _ = engine_of(scripted(b"a", 1))
    assert engine.model.guide(Grammar(rules(990, name))).allows(ord("a"))


# What can be followed by that only with which it goes on itself, and texts that it then goes on with.
ENDLESS = {
    "a lexeme": (Grammar, 'start: "b" | A "a"\nA: /a+/', "aaa"),
    "by two rules": (Grammar, "start: /b/ | a b\na: /(ab)+/\nb: /a/", "abab"),
    "the last line stands": (Grammar, '%llguidance {"no_forcing": false}\nstart: "b" | A "a"\nA: "a"+', "aaa"),
    "GBNF": (Grammar, 'root ::= "a" | "" | (("a" "b")+ ("a" root "c"))', "abab"),
    "separators": (JsonSchema, '{"items": {"const": true}, "x-guidance": {"item_separator": "(true)+"}}', "[true,"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_text_that_is_forced_for_ever(kind: str) -> None:
    """llguidance computes forced text without a limit: nobody else runs meanwhile."""
    code = (
        "from runtime.text.test_hostile_grammars import ENDLESS, engine_of, scripted\n"
        f"make, grammar, text = ENDLESS[{kind!r}]\n"
        "guide = engine_of(scripted(b'a', 1))[0].model.guide(make(grammar))\n"
        "for token in text.encode():\n"
        "    assert guide.allows(token)\n"
        "    guide.advance(token)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True, timeout=120)


def test_what_takes_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "SECONDS", 0.2)
    trials = Trials(guidance._LIMITS)
    trials._slow.seconds = 0.2
    found = trials.verdict(EXPLODING)
    assert found == Verdict("compiling it takes more than 0.2 seconds; make it simpler", 0.2, False)
    asked = count_asked(monkeypatch)
    assert trials.verdict(EXPLODING) == found and not asked


@pytest.mark.slow
def test_names_of_tokens_do_not_hide_what_takes_long() -> None:
    """A trial knows no model's tokens, and goes on as if it had those that are named."""
    for name in ("<|im_end|>", "<[7]>", "<[1-200000]>", "<[^7]>", "<think>"):
        trials = Trials(guidance._LIMITS)
        trials._slow.seconds = 0.5
        assert not trials.verdict(EXPLODING.replace("R", f"{name} R", 1)).tried


def test_verdicts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = count_asked(monkeypatch)
    for _ in range(3):
        JsonSchema('{"type": "integer", "minimum": 91827}')
    assert len(asked) == 1
    with monkeypatch.context() as patched:
        patched.setattr(trial, "_MOST_KNOWN", 3)
        trials = Trials(guidance._LIMITS)
        for number in range(9):
            trials.verdict(f'start: "{number}"')
        assert len(trials._known) == 3


def test_one_trial_of_a_text_that_many_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = count_asked(monkeypatch)
    with ThreadPoolExecutor(8) as threads:
        assert len({*threads.map(Regex, ["[a-f]{3}x" for _ in range(8)])}) == 1
    assert 1 <= len(asked) <= 2, "two are tried at a time"


def test_small_grammars_do_not_wait_for_those_that_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    trials, free = Trials(guidance._LIMITS), threading.Event()
    tried = trial._Lane.tried

    def held(lane: Any, request: dict[str, Any]) -> Verdict | None:
        if "slow" not in request["grammar"]:
            return tried(lane, request)
        return None if lane is trials._quick else Verdict(None) if free.wait(60) else None

    monkeypatch.setattr(trial._Lane, "tried", held)
    with ThreadPoolExecutor(24) as threads:
        slow = [threads.submit(trials.verdict, f'start: "slow {i}"') for i in range(20)]
        large = [threads.submit(trials.verdict, f'start: "slow {i}"' + " " * 40_000) for i in range(4)]
        until(lambda: len(trials._slow.semaphore._waiting) == 22)
        assert trials.verdict('start: "ordinary"').message is None
        assert not any(future.done() for future in slow + large)
        free.set()
        assert all(future.result(60).message is None for future in slow + large)


def test_the_smallest_comes_first_and_not_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(semaphore, "_MOST_WAITING", 3)
    door, order = Semaphore(1), list[int]()

    def enter(size: int) -> None:
        with door.entered(size):
            order.append(size)

    with ThreadPoolExecutor(3) as threads, door.entered(0):
        for number, size in enumerate((30, 10, 20)):
            threads.submit(enter, size)
            until(lambda wanted=number + 1: len(door._waiting) == wanted)  # type: ignore[misc]
        with pytest.raises(BusyError, match="wait to be compiled already; try again later"):
            enter(1)
    assert order == [10, 20, 30]


def test_a_process_that_was_killed_is_replaced() -> None:
    trials = Trials(guidance._LIMITS)
    assert trials.verdict('start: "a"').message is None
    (idle,) = trials._quick._idle
    idle.process.kill()
    idle.process.wait()
    assert trials.verdict('start: "b"').message is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_has_processes_of_its_own() -> None:
    """It neither reads the answers to its parent's questions nor ends the parent's processes."""
    program = """
import os, sys
from trigraph.runtime import Regex
from trigraph.runtime.sampling.guidance import trials
Regex("a")
before, (process,) = trials(), trials()._quick._idle
if (child := os.fork()) == 0:
    Regex("b")
    assert trials() is not before and process.ended
    del before, process
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
Regex("c")
assert trials()._quick._idle == [process] and process.process.poll() is None
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=1200)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_an_interrupt_ends_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(guidance._LIMITS)
    trials.verdict('start: "a"')
    ask = LimitedProcess.ask

    def interrupted(process: LimitedProcess, request: bytes, seconds: float) -> Any:
        main = threading.main_thread().ident
        threading.Timer(0.05, signal.pthread_kill, [main, signal.SIGINT]).start()
        return ask(process, request, seconds)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(LimitedProcess, "ask", interrupted)
        trials.verdict(EXPLODING)
    assert trials.verdict('start: "c"').message is None


def count_asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []
    tried = trial._Lane.tried

    def counting(lane: Any, request: dict[str, Any]) -> Verdict | None:
        asked.append(request["grammar"])
        return tried(lane, request)

    monkeypatch.setattr(trial._Lane, "tried", counting)
    return asked


def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it does not come to that")
