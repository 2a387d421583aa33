"""Log-probabilities of a text that is given: the bits of decoding, and llama.cpp's numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.oracles.llama import Llama
from trigraph.models.errors import TrigraphError
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Engine, Options, Sampling, load

TEXT = "In the beginning God created the heaven and the earth. And the earth was without form, and void."


@pytest.fixture(scope="module")
def engine(tiny_package: Path) -> Engine:
    return load(tiny_package, threads=1, chunk=16)


def test_the_bits_of_decoding(engine: Engine) -> None:
    options = Options(Sampling(0.9, seed=3), max_tokens=60, logprobs=4)
    request = engine.generate(TEXT, options)
    request.run()
    ids = [*request.prompt, *request.ids]
    scores = engine.score(ids, 4)
    assert [score.token for score in scores] == ids[1:]
    assert scores[len(request.prompt) - 1 :] == request.logprobs
    alone = load_fresh(engine)
    assert alone.score(ids, 4) == scores, "without what a cache holds"
    submitted = [alone.generate(ids[:40], options) for _ in range(3)]
    for other in submitted:
        other.begin()
    assert alone.score(ids, 4) == scores, "in company"
    # Each row is that of a prompt of these tokens.
    for end in (1, 2, 9, 17, 40):
        (first,) = first_logprobs(alone, ids[:end])
        assert first == scores[end - 1].top


def load_fresh(engine: Engine) -> Engine:
    engine.cache.clear()
    return engine


def first_logprobs(engine: Engine, ids: list[int]) -> list[tuple[tuple[int, float], ...]]:
    """The most likely tokens after `ids`, by a completion of one token."""
    request = engine.generate(ids, Options(Sampling(temperature=0), max_tokens=1, logprobs=4, ignore_eos=True))
    request.run()
    return [entry.top for entry in request.logprobs]


def test_rounds_take_several_tokens_at_once(engine: Engine) -> None:
    ids = engine.tokenizer.encode(TEXT)
    options = Options(max_tokens=len(ids) - 1, forced=tuple(ids[1:]), logprobs=0, ignore_eos=True)
    request = engine.generate(ids[:1], options)
    request.run()
    assert request.ids == ids[1:] and len(request.rounds) <= len(ids) / engine.steps.max_pending + 2
    assert not any(done.drafted for done in request.rounds), "given tokens are no drafts"


def test_a_completion_goes_on_behind_given_tokens(engine: Engine) -> None:
    ids = engine.tokenizer.encode(TEXT)
    sampling = Sampling(0.8, repeat_penalty=1.3, penalty_window=-1, seed=5)
    plain = engine.generate(ids, Options(sampling, max_tokens=20))
    given = engine.generate(ids[:10], Options(sampling, max_tokens=20 + len(ids) - 10, forced=tuple(ids[10:])))
    plain.run(), given.run()
    assert given.ids == [*ids[10:], *plain.ids]


def test_short_texts(engine: Engine) -> None:
    assert engine.score([7]) == []
    (only,) = engine.score([7, 9])
    assert only.token == 9 and only.top == () and only.logprob < 0
    assert len(engine.score([5] * engine.context)) == engine.context - 1
    for wrong in ([], [5] * (engine.context + 1), [1, engine.vocab]):
        with pytest.raises(TrigraphError):
            engine.score(wrong)


def test_llama_cpp_agrees(engine: Engine) -> None:
    oracle = Llama(TINY_GGUF)
    ids = engine.tokenizer.encode(TEXT)[:20]
    scores = engine.score(ids)
    expected = [oracle.log_probabilities(ids[:end], engine.vocab)[ids[end]] for end in range(1, len(ids))]
    differences = np.abs(np.array([score.logprob for score in scores]) - expected)
    assert differences.mean() < 0.05 and differences.max() < 0.5, "llama.cpp rounds activations to 8 bits"
