"""A completion that was begun elsewhere goes on as if it had never been cut, wherever that was."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from support.fakes.engine import END, THINK
from support.fakes.model import FakeModel, History, chaotic, mostly_right
from support.fakes.rounds import alone, finish, fresh, options, queued, run_round, tokens
from support.fakes.thinking_engine import CLOSE, VOCAB, VOCABULARY
from support.marks import slow_after
from trigraph.models.errors import TrigraphError
from trigraph.models.tokenizer import tokenizer_json
from trigraph.runtime import Engine, JsonSchema, Options, Regex, Sampling
from trigraph.runtime.scheduler.model import Model
from trigraph.runtime.text.tokenizer import Tokenizer

OPENED = [*b"Why?", THINK, 10]
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": dict(sampling=Sampling(temperature=1.1, top_k=0, top_p=1.0, seed=9)),
    "penalties": dict(
        sampling=Sampling(temperature=1.1, repeat_penalty=1.4, frequency_penalty=0.3, penalty_window=12, seed=3)
    ),
    "budget": dict(reasoning_budget=9),
    "stop strings": dict(stop=("abcdefgh", "zz"), sampling=Sampling(temperature=1.0, seed=5)),
    "log-probabilities": dict(logprobs=2),
}
CONSTRAINED: dict[str, dict[str, Any]] = {
    "regex": dict(constraint=Regex("[a-f]{3,9}")),
    "schema after a budget": dict(
        constraint=JsonSchema(json.dumps({"enum": ["yes", "no", {"maybe": 1}]})), reasoning_budget=9
    ),
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    """Its thoughts end by themselves at times, and by a stop token, which a constraint takes for their end."""
    plain = chaotic(VOCAB)

    def logits(history: History) -> np.ndarray:
        row = plain(history)
        row[CLOSE] += 8 * (len(history) % 29 == 0)
        row[END] += 9 * (len(history) % 23 == 0)
        return row

    model = FakeModel(VOCAB, logits, mostly_right(logits))
    return Engine(Model(model.steps(200, 4, chunk=16), Tokenizer(tokenizer_json(VOCABULARY), [END]), None))


@pytest.mark.parametrize("name", slow_after(1, [*REQUESTS, *CONSTRAINED]))
def test_a_completion_goes_on_from_every_token(engine: Engine, name: str) -> None:
    if name in CONSTRAINED:
        pytest.importorskip("llguidance", reason="llguidance is not installed: no constraints")
    asked = Options(**{"sampling": Sampling(temperature=0), "max_tokens": 60, **(REQUESTS | CONSTRAINED)[name]})
    whole = engine.generate(OPENED, asked)
    text = whole.run()
    assert len(whole.ids) > 5
    for cut in range(len(whole.ids) + 1):
        engine.cache.clear()
        rest = engine.generate(OPENED, asked, completed=whole.ids[:cut])
        assert (rest.run(), rest.ids) == (text, whole.ids), cut
        assert rest.finish_reason == whole.finish_reason
        assert rest.stop_string == whole.stop_string
        assert rest.logprobs == whole.logprobs[cut:]


@pytest.mark.parametrize("cached", [0, 5, 20, 25])
def test_what_the_cache_has_of_it_is_not_computed_again(cached: int) -> None:
    engine, model = fresh()
    prompt, asked = tokens(16), options(seed=2, max_tokens=30)
    expected = alone(prompt, asked)
    if cached:
        engine.generate((prompt + expected)[:cached], options(max_tokens=1)).run()
    model.runs.clear()
    rest = engine.generate(prompt, asked, completed=expected[:10])
    rest.run()
    assert rest.ids == expected
    assert rest.reused == min(cached, 16)
    computed = sum(sum(lengths) for graph, lengths in model.runs if graph == "prefill")
    assert computed == 25 - cached, "the last known token is verified, not computed"


def test_it_may_be_preempted_and_shares_rounds_with_others() -> None:
    engine, _ = fresh(pages=24)
    prompts = [tokens(12, seed) for seed in range(4)]
    asked = [options(seed, max_tokens=40) for seed in range(4)]
    expected = [alone(prompt, each) for prompt, each in zip(prompts, asked, strict=True)]
    requests = [
        queued(engine, prompt, each, completed=known[: 9 * number])
        for number, (prompt, each, known) in enumerate(zip(prompts, asked, expected, strict=True))
    ]
    run_round(engine)
    finish(engine, requests)
    assert [request.ids for request in requests] == expected
    assert any(request.preemptions for request in requests)


@pytest.mark.parametrize(
    ("completed", "sentence"),
    [
        ([400], "token ids must be from 0 to"),
        (["a"], "completed is"),
        ([1] * 20, "completed has 20 tokens, and the completion ends before them"),
    ],
)
def test_known_tokens_that_cannot_be(completed: list[Any], sentence: str) -> None:
    engine, _ = fresh()
    with pytest.raises(TrigraphError, match=sentence):
        engine.generate(tokens(4), options(max_tokens=12), completed=completed)
