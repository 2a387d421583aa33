"""The thought that a reply begins with: a constraint begins after it, and a budget ends it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.fakes.engine import END, METADATA, THINK
from support.fakes.model import FakeModel, History, chaotic, mostly_right
from support.fakes.thinking_engine import CLOSE, VOCAB, VOCABULARY
from trigraph.models.errors import TrigraphError
from trigraph.models.tokenizer import tokenizer_json
from trigraph.runtime import Engine, JsonSchema, Options, Regex, Sampling
from trigraph.runtime.sampling.constraint import Constraint
from trigraph.runtime.sampling.thought import Thought, ThoughtTokens
from trigraph.runtime.scheduler.model import Model
from trigraph.runtime.text.tokenizer import Tokenizer

pytest.importorskip("llguidance", reason="llguidance is not installed: no constraints")

TOKENS = ThoughtTokens(THINK, (10,), CLOSE, (10, 10))
OPENED = [*b"Why?", THINK, 10]
SCHEMA = JsonSchema(json.dumps({"enum": ["yes", "no", {"maybe": 1}]}))
GREEDY, SAMPLED = Sampling(temperature=0), Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=4)
CLOSING = "\n</think>\n\n"


def engine_of(next_logits: Callable[[History], np.ndarray]) -> Engine:
    model = FakeModel(VOCAB, next_logits, mostly_right(next_logits))
    return Engine(Model(model.steps(200, 4, chunk=16), Tokenizer(tokenizer_json(VOCABULARY), [END]), None))


def scripted(*reply: int) -> Callable[[History], np.ndarray]:
    """Logits that make `reply` follow a prompt of the length of OPENED."""

    def logits(history: History) -> np.ndarray:
        row = np.zeros(VOCAB, np.float32)
        row[reply[min(len(history) - len(OPENED), len(reply) - 1)]] = 9
        return row

    return logits


def complete(engine: Engine, prompt: list[int] = OPENED, **options: Any) -> str:
    return engine.generate(prompt, Options(**{"sampling": GREEDY, "max_tokens": 120, **options})).run()


def test_a_constraint_begins_after_the_thought() -> None:
    engine = engine_of(scripted(*b"hm", CLOSE, *b"What?"))
    assert complete(engine, constraint=Regex("yes|no")) == "hm</think>\n\nno"
    assert complete(engine, [*b"Why??\n"], constraint=Regex("yes|no")) == "no", "no thought is open"
    assert complete(engine, [*b"Why?.", THINK], constraint=Regex("yes|no")) == "hm</think>\n\nno"
    closed = [THINK, *b"\n", CLOSE, *b"\n\n"]
    assert complete(engine, closed, constraint=Regex("yes|no")) == "no"


def test_a_reply_under_a_constraint_does_not_end_within_the_thought() -> None:
    engine = engine_of(scripted(*b"hm", END))
    assert complete(engine, constraint=Regex("yes|no")) == "hm</think>\n\nno"
    assert complete(engine, reasoning_budget=9) == "hm", "without a constraint it may"


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_a_budget_ends_the_thought(budget: int) -> None:
    engine = engine_of(scripted(*b"h"))
    expected = "h" * budget + CLOSING + "hh"
    assert complete(engine, reasoning_budget=budget, max_tokens=budget + 6) == expected
    assert complete(engine, reasoning_budget=100, max_tokens=8) == "h" * 8
    opening = engine_of(scripted(THINK, *b"h"))
    assert complete(opening, [*b"Why?\n\n"], reasoning_budget=budget, max_tokens=budget + 7) == "<think>" + expected
    speaking = engine_of(scripted(*b"hm", THINK, *b"h"))
    assert complete(speaking, [*b"Why?\n\n"], reasoning_budget=budget, max_tokens=6) == "hm<think>hhh"


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("constraint", [SCHEMA, Regex("[a-f]{3,9}"), None], ids=["schema", "regex", "none"])
@pytest.mark.parametrize("budget", [None, 0, 7, 30])
def test_speculation_changes_nothing(constraint: Constraint | None, budget: int | None, sampling: Sampling) -> None:
    plain_logits = chaotic(VOCAB)

    def often_closing(history: History) -> np.ndarray:
        row = plain_logits(history)
        row[CLOSE] += 8 * (len(history) % 29 == 0)
        return row

    engine = engine_of(often_closing)
    request: dict[str, Any] = dict(sampling=sampling, constraint=constraint, reasoning_budget=budget, max_tokens=80)
    plain = complete(engine, speculate=False, **request)
    for drafts in (None, 1, 3, 7):
        assert complete(engine, draft_tokens=drafts, **request) == plain
    if constraint is not None:
        _, closed, said = plain.partition("</think>\n\n")
        assert closed
        assert said.startswith("{") or said.strip('"') in ("yes", "no") or set(said) <= set("abcdef")


def test_without_a_budget_or_constraint_nothing_is_watched() -> None:
    engine = engine_of(chaotic(VOCAB))
    assert engine.model.thought(Options(), OPENED) is None
    assert engine.model.thought(Options(constraint=SCHEMA), [1]) is None
    with pytest.raises(TrigraphError, match="reasoning_budget is -1"):
        Options(reasoning_budget=-1)
    other = Engine(Model(engine.steps, Tokenizer(tokenizer_json(METADATA), [END]), None))
    assert other.model.thought(Options(reasoning_budget=3), OPENED) is None


def test_a_bias_bans_the_end_up_to_the_budget() -> None:
    engine = engine_of(scripted(*b"hm", CLOSE))
    banned = Sampling(temperature=0, logit_bias=((CLOSE, -math.inf), (10, -math.inf)))
    thought, closed, _ = complete(engine, sampling=banned, reasoning_budget=5, max_tokens=12).partition(CLOSING)
    assert (len(thought), closed) == (5, CLOSING)


def test_forced_tokens_are_known_ahead() -> None:
    thought = Thought(TOKENS, opened=True, budget=1)
    assert thought.forced == []
    thought.advance(7)
    assert bytes(thought.forced[:1]) + bytes(thought.forced[2:]) == b"\n\n\n"
    for token in thought.forced:
        assert not thought.over
        thought.advance(token)
    assert thought.over
