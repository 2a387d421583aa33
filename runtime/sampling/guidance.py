"""The library `llguidance`, which parses constraints, and the work that it may do for one of them."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trigraph.models.errors import TrigraphError
from trigraph.runtime.sampling.semaphore import Semaphore
from trigraph.runtime.sampling.trial import QUICK_SECONDS, STACK, Trials, Verdict

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

# What one call may take: some 10 ms for a vocabulary of 250,000 tokens, 50 where an expression explodes. Schemas of
# real tools take a tenth.
_LIMITS: dict[str, Any] = {
    "max_items_in_row": 1000,
    "step_max_items": 10_000,
    "initial_lexer_fuel": 300_000,
    "step_lexer_fuel": 30_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}


def library() -> ModuleType:
    """The module. Raises TrigraphError when it is not installed."""
    try:
        import llguidance
    except ImportError:
        raise TrigraphError(
            "JSON schemas, grammars and regular expressions need llguidance: pip install llguidance"
        ) from None
    return llguidance


@cache
def limits() -> LLParserLimits:
    """What one call may take."""
    chosen: LLParserLimits = library().LLParserLimits(**_LIMITS)
    return chosen


@cache
def trials() -> Trials:
    """Where grammars are compiled first."""
    return Trials(_LIMITS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=trials.cache_clear)


def verdict(grammar: str, *, whole: bool = True) -> Verdict:
    """Whether a grammar, as llguidance writes it, can be used; see `Trials.verdict`."""
    library()
    judged = trials().verdict(grammar, whole=whole)
    return judged if judged.message is None else judged._replace(message=plain(judged.message))


def matcher(grammar: str, vocabulary: LLTokenizer) -> LLMatcher:
    """What follows the tokens of a grammar, which has stood its trial.

    It is compiled in a thread with more stack than the trial had. Raises TrigraphError when the trial failed.
    """
    judged = verdict(grammar)
    if judged.message is not None:
        raise TrigraphError(f"the grammar cannot be used: {judged.message}")

    def make() -> LLMatcher:
        made: LLMatcher = library().LLMatcher(vocabulary, grammar, log_level=0, limits=limits())
        made.compute_bitmask()  # lets other threads run, as the next question does not, which is quick after this
        return made

    kind = "slow-grammars" if judged.seconds > QUICK_SECONDS else "grammars"
    with _semaphore(kind).entered(len(grammar)):
        return deep_threads(kind, 1).submit(make).result()


@cache
def _semaphore(kind: str) -> Semaphore:
    return Semaphore(1)


@cache
def deep_threads(name: str, count: int) -> ThreadPoolExecutor:
    """Threads with twice the stack that a trial has."""
    threads = ThreadPoolExecutor(count, f"trigraph-{name}")
    started = threading.Barrier(count)
    before = threading.stack_size(2 * STACK)
    try:
        for _ in range(count):
            threads.submit(started.wait)
    finally:
        threading.stack_size(before)
    return threads


def plain(message: str) -> str:
    """An error of the library as one line, without the grammar that it quotes: that may be ours."""
    first = message.split("<state>")[0].split("<non-verbose/>")[0].split("\n   1 | ")[0]
    return " ".join(first.split())
