"""Prompts that begin like earlier ones: which tokens go through a prefill, counted."""

from pathlib import Path

import numpy as np
import pytest

from support.fakes.engine import END, METADATA, assert_settled, engine_of, scripted
from support.fakes.model import FakeModel, chaotic, mostly_right
from trigraph.models.tokenizer import tokenizer_json
from trigraph.runtime import Engine, Options, Sampling
from trigraph.runtime.scheduler.model import Model
from trigraph.runtime.text.tokenizer import Tokenizer

VOCAB = len(METADATA["tokenizer.ggml.tokens"])
OPTIONS = Options(Sampling(temperature=0.9, seed=1), max_tokens=12, ignore_eos=True, draft_tokens=3)


class Runs:
    """Runs with one cache file, each in a program of its own."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._histories: list[tuple[int, ...]] = [()]
        self._numbers: dict[tuple[int, ...], int] = {(): 0}

    def __call__(self, prompt: list[int], options: Options = OPTIONS) -> tuple[list[int], int]:
        """The completion, and how many tokens of the prompt went through a prefill."""
        logits = chaotic(VOCAB)
        model = FakeModel(VOCAB, logits, mostly_right(logits))
        # Numbers of histories are what this model's states hold: those of earlier programs mean the same here.
        model._histories, model._numbers = self._histories, self._numbers
        engine = Engine(
            Model(model.steps(400, sequences=8, chunk=32), Tokenizer(tokenizer_json(METADATA), [END]), None)
        )
        generation = engine.generate(prompt, options, self._cache)
        generation.run()
        assert_settled(engine)
        count = sum(sum(lengths) for graph, lengths in model.runs if graph == "prefill")
        assert count == generation.stats.prompt_tokens == len(prompt) - generation.stats.reused_tokens
        # The fake model has checked each state that was read; this is the completion of the whole prompt.
        plain = Engine(Model(FakeModel(VOCAB, logits).steps(400), engine.tokenizer, None, no_draft="none"))
        assert plain.generate(prompt, options).run() == generation.text
        return generation.ids, count


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "cache")


def text(length: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 256, length)]


def test_a_prompt_that_grows(run: Runs) -> None:
    prompt = text(50, 1)
    ids, count = run(prompt)
    assert count == 50
    assert run(prompt) == (ids, 0), "the prompt itself"
    assert run([*prompt, *text(7, 2)])[1] == 7, "the prompt and more"
    ids, _ = run([*prompt, *text(7, 2)])
    # The last token of a completion was never computed.
    follow_up = [*prompt, *text(7, 2), *ids, *text(5, 3)]
    assert run(follow_up)[1] == 6, "prompt, completion and a new question"
    assert run([*prompt, *text(7, 2)])[1] == 7, "four checkpoints are kept: of the old ones, the first prompt"
    assert run(prompt)[1] == 0
    assert run(prompt[:-1])[1] == 49, "a state cannot be cropped"


def test_questions_about_one_document(run: Runs) -> None:
    """What two prompts have in common gets a state of its own when it shows."""
    document = text(100, 1)
    assert run([*document, *text(9, 2)])[1] == 109
    assert run([*document, *text(9, 3)])[1] == 109
    for seed in range(4, 10):
        assert run([*document, *text(9, seed)])[1] == 9


def test_a_common_beginning_that_is_not_worth_a_state(run: Runs) -> None:
    assert run([*text(10, 1), *text(9, 2)])[1] == 19
    for seed in (3, 4):
        assert run([*text(10, 1), *text(9, seed)])[1] == 19


def test_another_prompt_takes_the_place(run: Runs) -> None:
    run(text(30, 1))
    assert run(text(40, 2))[1] == 40
    assert run(text(40, 2))[1] == 0
    assert run(text(30, 1))[1] == 30


def test_an_answer_that_was_cut_off(run: Runs) -> None:
    """No tokens, or an end in the middle of an accepted run."""
    assert run(text(20, 1), Options(max_tokens=0))[1] == 20
    for tokens in (1, 2, 5):
        ids, _ = run(text(20, 1), Options(Sampling(temperature=0), max_tokens=tokens, draft_tokens=7, ignore_eos=True))
        assert run([*text(20, 1), *ids, 7])[1] == 2


def test_a_completion_that_a_stop_token_ended(tmp_path: Path) -> None:
    """All of it is in the file: what follows it is all that a follow-up computes."""
    prompt, reply = text(20, 1), [*b"abcdef", END]
    engine, _ = engine_of(scripted(reply, len(prompt)), context=100, sequences=8)
    options = Options(Sampling(temperature=0), draft_tokens=3)
    assert engine.generate(prompt, options, tmp_path / "cache").run() == "abcdef"
    engine.cache.clear()
    again = engine.generate([*prompt, *reply, 7], options, tmp_path / "cache", checkpoints=[10])
    again.run()
    assert again.stats.prompt_tokens == 2


def test_checkpoints_that_are_asked_for_are_in_the_file(tmp_path: Path) -> None:
    engine, _ = engine_of(scripted(b"abc", 40), context=100, sequences=8)
    options = Options(Sampling(temperature=0), max_tokens=3)
    engine.generate(text(40, 1), options, tmp_path / "cache", checkpoints=[25]).run()
    engine.cache.clear()
    other = engine.generate([*text(40, 1)[:25], 7, 8, 9], options, tmp_path / "cache")
    other.run()
    assert other.stats.reused_tokens == 25
