"""Requests on a scripted model: nothing leaks past a stop, wherever in an accepted run it falls."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.fakes import chat_engine
from support.fakes.engine import END, GREEDY, TEMPLATE, VOCAB, assert_settled, engine_of, scripted
from support.fakes.model import History, chaotic, mostly_right
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Options, Sampling
from trigraph.runtime.text import tokenizer


def options(drafts: int, **others: object) -> Options:
    return Options(sampling=GREEDY, draft_tokens=drafts, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize("drafts", range(8))
def test_a_stop_token_ends_the_text_wherever_it_falls(drafts: int) -> None:
    for length in range(12):
        engine, _ = engine_of(scripted([*b"abcdefghijkl"[:length], END, *b"leaked"], 2))
        generation = engine.generate([1, 2], options(drafts))
        assert generation.run() == "abcdefghijkl"[:length]
        assert generation.ids == list(b"abcdefghijkl"[:length])
        assert generation.stats.finish_reason == "stop"
        assert generation.stats.tokens == length + 1
        assert_settled(engine)


@pytest.mark.parametrize("drafts", [0, 3, 7])
def test_the_token_limit_holds(drafts: int) -> None:
    for limit in range(1, 14):
        engine, model = engine_of(scripted(b"0123456789", 2))
        generation = engine.generate([1, 2], options(drafts, max_tokens=limit))
        assert generation.run() == ("0123456789" * 2)[:limit]
        assert generation.stats.finish_reason == "length"
        verified = sum(lengths[0] for graph, lengths in model.runs if graph == "verify")
        assert verified == limit - 1, "tokens beyond the limit were computed"


@pytest.mark.parametrize("drafts", [0, 3, 7])
@pytest.mark.parametrize("prompt", [1, 10, 31, 32])
def test_the_context_limit_holds(drafts: int, prompt: int) -> None:
    engine, _ = engine_of(scripted(b"0123456789", prompt), context=32)
    generation = engine.generate([1] * prompt, options(drafts, max_tokens=100))
    assert generation.run() == ("0123456789" * 4)[: 32 - prompt]
    assert generation.stats.finish_reason == "context"


def test_no_tokens_at_all() -> None:
    engine, _ = engine_of(scripted(b"abc", 1))
    generation = engine.generate([1], options(3, max_tokens=0))
    assert generation.run() == ""
    assert (generation.stats.finish_reason, generation.stats.tokens) == ("length", 0)


@pytest.mark.parametrize("drafts", [0, 1, 4, 7])
@pytest.mark.parametrize(
    ("stop", "shown"), [("fg", "abcde"), ("a", ""), ("cd\u65e5", "ab"), ("zz", "abcd\u65e5efg"), ("g", "abcd\u65e5ef")]
)
def test_stop_strings_end_the_text(drafts: int, stop: str, shown: str) -> None:
    source = "abcde fg" if stop == "fg" else "abcd\u65e5efg"
    script = [*source.replace(" ", "").encode(), END, *b"leaked"]
    engine, _ = engine_of(scripted(script, 2))
    generation = engine.generate([1, 2], options(drafts, stop=(stop, "never")))
    pieces = list(generation)
    assert "".join(pieces) == generation.text == shown
    assert generation.stats.finish_reason == "stop"


def test_eos_can_be_ignored() -> None:
    engine, _ = engine_of(scripted([*b"ab", END], 1))
    generation = engine.generate([1], options(2, max_tokens=7, ignore_eos=True))
    assert generation.run() == "ababa"
    assert generation.ids == [*b"ab", END, *b"ab", END, *b"a"]
    assert generation.stats.finish_reason == "length"


BIAS = ((3, 5.0), (97, -float("inf")), (98, 2.0))


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        Sampling(temperature=0.8, seed=4),
        Sampling(repeat_penalty=1.3, seed=1),
        Sampling(temperature=0, logit_bias=BIAS),
        Sampling(repeat_penalty=1.3, seed=1, logit_bias=BIAS),
    ],
)
def test_speculation_does_not_change_the_text(sampling: Sampling) -> None:
    logits = chaotic(VOCAB, 2.0)
    streams = []
    for drafts in (None, *range(8)):
        engine, _ = engine_of(logits)
        guess = mostly_right(logits)
        engine.steps._draft.model.guess = guess  # type: ignore[union-attr]
        generation = engine.generate([5, 6, 7], Options(sampling, max_tokens=40, ignore_eos=True, draft_tokens=drafts))
        generation.run()
        streams.append(generation.ids)
    assert all(stream == streams[0] for stream in streams)
    assert len(streams[0]) == 40


def test_unlikely_drafts_are_not_verified() -> None:
    logits = chaotic(VOCAB)
    engine, model = engine_of(logits)
    model.guess = lambda history: (int(logits(history).argmax()), 0.9 if len(history) % 4 else 0.3)
    engine.generate([1, 2], options(7, max_tokens=30, draft_p_min=0.5, ignore_eos=True)).run()
    assert max(lengths[0] for graph, lengths in model.runs if graph == "verify") == 4


def test_statistics() -> None:
    engine, _ = engine_of(scripted(b"0123456789", 3))
    generation = engine.generate([1, 2, 3], options(3, max_tokens=9))
    generation.run()
    stats = generation.stats
    assert (stats.prompt_tokens, stats.tokens, stats.rounds, stats.drafted, stats.accepted) == (3, 9, 2, 6, 6)
    assert stats.tokens_per_round == 4
    assert stats.peak_memory is None or stats.peak_memory > 1e6
    assert "accepted 6/6 drafts, 4.00 tokens a round" in stats.line()
    assert stats.as_json()["rate"] == stats.rate > 0


def test_why_there_is_no_speculation() -> None:
    engine, _ = engine_of(scripted(b"abc", 1), draft=False)
    mtp = engine.generate([1], Options(GREEDY, max_tokens=5, drafter="mtp"))
    mtp.run()
    assert "speculation off: the model has no MTP head" in mtp.stats.line()
    engine, _ = engine_of(scripted(b"abc", 1))
    assert engine.generate([1], Options(GREEDY, speculate=False)).stats.speculation == "off as asked"
    with pytest.raises(TrigraphError, match="a round drafts at most 7"):
        engine.generate([1], options(8))
    with pytest.raises(TrigraphError, match="drafter is 'eagle'; it must be one of auto, mtp, ngram"):
        Options(drafter="eagle")


@pytest.mark.parametrize("drafts", [1, 3, 7])
def test_a_model_without_a_head_drafts_by_n_grams(drafts: int) -> None:
    engine, _ = engine_of(scripted(b"to be or not ", 1), draft=False, context=300)
    generation = engine.generate([1], Options(GREEDY, max_tokens=200, draft_tokens=drafts))
    assert generation.run() == (b"to be or not " * 20)[:200].decode()
    stats = generation.stats
    assert stats.accepted > 0.7 * stats.drafted > 0
    assert stats.rounds < 150
    assert re.search(r"on, \d.\d drafts a round, .*n-grams alone: the model has no MTP head$", stats.speculation)


def test_who_drafts_can_be_chosen() -> None:
    for drafter, heads in (("ngram", False), ("mtp", True)):
        engine, model = engine_of(scripted(b"abcde", 1), context=300)
        generation = engine.generate([1], Options(GREEDY, max_tokens=100, drafter=drafter, draft_tokens=2))
        generation.run()
        assert (sum(graph == "draft" for graph, _ in model.runs) > 20) == heads
        assert ("by n-grams" in generation.stats.speculation) != heads
        assert generation.stats.accepted > 50


@pytest.mark.parametrize("prompt", [[], [1] * 65])
def test_prompts_of_no_use_are_refused(prompt: list[int]) -> None:
    engine, _ = engine_of(scripted(b"abc", 1))
    with pytest.raises(TrigraphError, match="it must have 1 to 64"):
        engine.generate(prompt)


def test_cancelling_keeps_what_is_there() -> None:
    engine, _ = engine_of(scripted(b"0123456789", 1), context=4096)
    generation = engine.generate([1], options(0, max_tokens=4000))
    shown = ""
    for piece in generation:
        shown += piece
        if "4" in piece:
            generation.cancel()
    assert shown == generation.text
    assert generation.text != "0123456789" * 400
    assert ("0123456789" * 400).startswith(generation.text)
    assert generation.stats.finish_reason == "cancelled"


def test_an_iteration_left_early_gives_its_state_back() -> None:
    engine, _ = engine_of(scripted(b"abc", 1))
    iterator = iter(engine.generate([1]))
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    assert_settled(engine)


def test_a_conversation_computes_only_what_is_new() -> None:
    answers = {1: b"yes", 2: b"no", 3: b"maybe"}

    def logits(history: History) -> np.ndarray:
        # The answer to the n-th question, after the last "<|assistant|>".
        text = bytes(t if t < 256 else 0 for t in history)
        done = len(text) - text.rindex(b"<|assistant|>") - len(b"<|assistant|>") if b"<|assistant|>" in text else 0
        row = np.zeros(VOCAB, np.float32)
        answer = [*answers.get(text.count(b"<|user|>"), b""), END]
        row[answer[min(done, len(answer) - 1)]] = 1
        return row

    engine, model = engine_of(logits, context=300, template=TEMPLATE)
    chat = engine.chat("Be brief.")
    for turn, answer in enumerate(answers.values(), 1):
        reply = chat.say(f"q{turn}", options(3))
        assert "".join(reply) == answer.decode()
        assert chat.messages[-1] == {"role": "assistant", "content": answer.decode()}
    prompt = engine.tokenizer.encode(chat._template.render(chat.messages[:-1]))
    stats = reply.request.stats
    assert stats.reused_tokens > 60
    assert stats.prompt_tokens + stats.reused_tokens == len(prompt)
    computed = sum(sum(lengths) for graph, lengths in model.runs if graph == "prefill")
    assert computed < len(prompt)
    assert_settled(engine)


def test_a_template_that_rewrites_answers_goes_on_from_before_them() -> None:
    rewriting = TEMPLATE.replace("m.content", "(m.content if m.role != 'assistant' else '(cut)')")
    engine, _ = engine_of(scripted([*b"thinking", END], 0), context=300, template=rewriting)
    chat = engine.chat("A system message that is long enough to matter.")
    list(chat.say("first", options(2, max_tokens=9)))
    reply = chat.say("second", options(2, max_tokens=9))
    list(reply)
    first_prompt = engine.tokenizer.encode(chat._template.render(chat.messages[:2]))
    assert reply.request.stats.reused_tokens == len(first_prompt)


def test_a_conversation_survives_an_error() -> None:
    engine, model = engine_of(scripted([*b"ok", END], 0), context=100, template=TEMPLATE)
    chat = engine.chat()
    list(chat.say("hello", options(1, max_tokens=3)))
    with pytest.raises(
        TrigraphError,
        match=r"the prompt has 2[0-9]+ tokens; it must have 1 to 100, the loaded context; shorten it, or load with",
    ):
        chat.say("x" * 200)
    model.fail = True
    with pytest.raises(RuntimeError):
        list(chat.say("again", options(1, max_tokens=3)))
    model.fail = False
    assert len(chat.messages) == 2
    list(chat.say("again", options(1, max_tokens=3)))
    assert len(chat.messages) == 4


@pytest.mark.parametrize("chatml", [False, True])
def test_a_chat_without_a_template_has_turns(chatml: bool) -> None:
    engine, _ = chat_engine.engine_of(chat_engine.PLAIN) if chatml else engine_of(scripted(b"a", 1))
    template = replace(engine.model, template=None).chat_template()
    assert template.notice is not None and ("ChatML" in template.notice) == chatml
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    ends = ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",)
    plain = ("Be brief.\n\nUser:\nHi\n\nAssistant:\n",)
    assert template.render(messages) in (ends if chatml else plain)


def test_a_prompt_longer_than_the_context_is_refused() -> None:
    engine, _ = engine_of(scripted(b"a", 2), context=64)
    with pytest.raises(TrigraphError, match="the prompt has 65 tokens; it must have 1 to 64"):
        engine.generate([1] * 65)
    sequence = engine.steps.new_sequence()
    with pytest.raises(TrigraphError, match="the prompt reaches 65 tokens and the context holds 64"):
        engine.steps.prefill([sequence], [[1] * 65])
    engine.steps.prefill([sequence], [[1] * 64])


def test_a_text_far_longer_than_the_context_is_refused_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in characters that are tokenised."""
    engine, _ = engine_of(scripted(b"a", 2), context=64)
    ids, counted = tokenizer._ids, list[int]()

    def counting(own: Any, text: str) -> list[int]:
        counted.append(len(text))
        return ids(own, text)

    monkeypatch.setattr(tokenizer, "_ids", counting)
    with pytest.raises(TrigraphError, match=r"the prompt has more than [0-9]+ tokens; it must have 1 to 64"):
        engine.generate("a word " * 500_000)
    assert 0 < sum(counted) < 50_000
