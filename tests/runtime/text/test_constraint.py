"""Constrained completions: what they are made of, that speculation does not change them, and what they cost."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.fakes.engine import END, GREEDY, TEMPLATE, VOCAB, engine_of, scripted
from support.fakes.model import chaotic
from support.fakes.step import FakeStep
from support.texts.constraints import CONSTRAINTS, LARK, keeps_to
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Grammar, JsonSchema, Options, Regex, Sampling, load
from trigraph.runtime.sampling.constraint import Constraint
from trigraph.runtime.sampling.guide import Guide
from trigraph.runtime.sampling.sampling import Sampler
from trigraph.runtime.text.tokenizer import Tokenizer

pytest.importorskip("llguidance", reason="llguidance is not installed: no constraints")

SAMPLINGS = {
    "greedy": GREEDY,
    "sampled": Sampling(temperature=0.9, seed=11),
    "unfiltered": Sampling(temperature=1.3, top_k=0, top_p=1.0, seed=5),
    "penalties": Sampling(
        temperature=0.8, seed=2, repeat_penalty=1.3, frequency_penalty=0.2, logit_bias=((300, 2.0), (69, -1.0))
    ),
    "greedy with penalties": Sampling(temperature=0, repeat_penalty=1.3, logit_bias=((93, -2.0),)),
}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded machine a mask may be late, which is another test's subject."""
    monkeypatch.setattr("trigraph.runtime.sampling.guide._PATIENCE", 60.0)


@pytest.fixture(scope="module")
def engine(tiny_package: Path) -> Engine:
    return load(tiny_package, context=512, threads=1)


def complete(engine: Engine, options: Options) -> tuple[str, list[int], str]:
    generation = engine.generate("And the king said unto the people of the land, ", options)
    generation.run()
    return generation.text, generation.ids, generation.stats.finish_reason


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda c: str(c)[:60])
def test_speculation_does_not_change_a_completion(
    engine: Engine, constraint: Constraint, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few drafts, many, and each number between them once for every constraint and every sampling."""
    forced, between = Sampler.forced, 2 + ([*SAMPLINGS].index(sampling) + CONSTRAINTS.index(constraint)) % 5

    def options(**others: Any) -> Options:
        return Options(SAMPLINGS[sampling], max_tokens=400, constraint=constraint, **others)

    with monkeypatch.context() as patched:
        patched.setattr(Sampler, "forced", lambda self, limit: forced(self, limit) if limit == 1 else [])
        plain = complete(engine, options(speculate=False))
    assert complete(engine, options(speculate=False)) == plain
    for drafts in (None, 1, between, 7):
        assert complete(engine, options(draft_tokens=drafts)) == plain
    text, _, reason = plain
    # Nothing else ends these texts, as all of them are short; an unlikely one may be long.
    assert reason == "stop", text
    assert keeps_to(text, constraint), text


@pytest.mark.parametrize(
    "text",
    ["cafe\u0301 \u212b \ufb01", "a<|im_end|>b<|endoftext|>", "<think>a</think>", "\x00\x1f\x7f\ufeff", "👩‍👩‍👧日本"],
)
def test_texts_are_forced_to_the_byte(engine: Engine, text: str) -> None:
    for constraint in (Regex(f"({re.escape(text)}|{re.escape(text)}x)"), JsonSchema(json.dumps({"const": text}))):
        plain, speculative = (complete(engine, Options(GREEDY, constraint=constraint, draft_tokens=n)) for n in (0, 3))
        assert plain == speculative
        found = json.loads(plain[0]) if isinstance(constraint, JsonSchema) else plain[0].removesuffix("x")
        assert found == text


@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
@pytest.mark.parametrize("limit", [{"max_tokens": 9}, {"stop": ("e",)}], ids=str)
def test_other_ends_come_first(engine: Engine, sampling: str, limit: dict[str, Any]) -> None:
    request = dict(constraint=Regex("[a-z ]{60}"), **limit)
    plain = complete(engine, Options(SAMPLINGS[sampling], speculate=False, **request))
    for drafts in (1, 4, 7):
        assert complete(engine, Options(SAMPLINGS[sampling], draft_tokens=drafts, **request)) == plain
    assert re.fullmatch("[a-z ]{1,59}", plain[0])
    assert plain[2] == ("length" if "max_tokens" in limit else "stop")


def test_a_constraint_sees_the_chosen_tokens_only(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    advance = Guide.advance

    def spy(guide: Guide, token: int) -> None:
        seen.append(token)
        advance(guide, token)

    monkeypatch.setattr(Guide, "advance", spy)
    _, ids, _ = complete(engine, Options(GREEDY, constraint=Regex("([a-z]+ ){9}"), draft_tokens=7))
    assert seen == ids


@pytest.mark.parametrize("drafts", [0, 3, 7])
def test_a_stop_token_ends_a_text_that_is_whole_and_no_other(drafts: int) -> None:
    wants_to_stop, _ = engine_of(scripted([END], 2))
    request = Options(GREEDY, constraint=Regex("(abc)+"), draft_tokens=drafts)
    generation = wants_to_stop.generate([1, 2], request)
    assert generation.run() == "abc"
    assert (generation.stats.finish_reason, generation.stats.tokens) == ("stop", 4)
    never_stops, _ = engine_of(scripted(b"abcabcabc", 2))
    generation = never_stops.generate([1, 2], Options(GREEDY, 7, constraint=Regex("(abc)+"), draft_tokens=drafts))
    assert (generation.run(), generation.stats.finish_reason) == ("abcabca", "length")


def test_nothing_follows_a_finished_constraint() -> None:
    engine, model = engine_of(scripted(b"xyz", 2))
    generation = engine.generate([1, 2], Options(GREEDY, constraint=Regex("[bc]"), ignore_eos=True))
    assert generation.run() == "b"
    assert generation.stats.finish_reason == "stop"
    assert [graph for graph, _ in model.runs] == ["prefill"], "a step was made for a token that nobody asked for"
    generation = engine.generate([1, 2], Options(GREEDY, constraint=Regex("")))
    assert (generation.run(), generation.stats.finish_reason) == ("", "stop")


@pytest.mark.parametrize("draft", [False, True])
def test_forced_tokens_are_computed_together(draft: bool) -> None:
    engine, model = engine_of(scripted(b"?", 1), draft=draft)
    generation = engine.generate([1], Options(GREEDY, constraint=Regex("(Good|Bad) morning, [a-z]!")))
    assert generation.run() == "Bad morning, a!"
    verified = [lengths[0] for graph, lengths in model.runs if graph == "verify"]
    assert verified == [8, 5, 2], "not the fewest steps"
    assert (generation.stats.drafted, generation.stats.tokens_per_round) == (0, 14 / 3)


def test_a_model_without_stop_tokens_is_refused() -> None:
    engine, _ = engine_of(scripted(b"ab", 1))
    engine = Engine(replace(engine.model, tokenizer=Tokenizer(engine.tokenizer.as_json(), [])))
    with pytest.raises(TrigraphError, match="no stop token"):
        engine.generate([1], Options(GREEDY, constraint=Regex("ab")))


def guided(engine: Engine, constraint: Constraint, sampling: Sampling = GREEDY) -> tuple[Sampler, Guide]:
    guide = engine.model.guide(constraint)
    return Sampler(sampling, [], guide), guide


def test_logits_are_read_where_there_is_a_choice_only(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = engine_of(scripted(b"a", 1))
    unread = FakeStep(np.array([ord("z")]))
    sampler, guide = guided(engine, Regex("(hallelujah|hosanna)!"), Sampling(temperature=1.0))
    assert guide.forced == [ord("h")]
    assert sampler.pick(unread, 0, 0) == ord("h")
    assert guide.forced == []
    row = np.where(np.arange(VOCAB) == ord("o"), 9, 0).astype(np.float32)
    assert sampler.pick(FakeStep(np.array([0]), row[None]), 0, 1) == ord("o")
    assert bytes(sampler.pick(unread, 0, i) for i in range(6)) == b"sanna!"
    assert guide.finished
    monkeypatch.setattr(Guide, "allowed", lambda self: pytest.fail("the whole vocabulary was looked at"))
    sampler, guide = guided(engine, Regex("[a-z]{9}"))
    assert sampler.pick(unread, 0, 0) == ord("z")


@pytest.mark.parametrize("pattern", ["[a-y]*", "[0-9]", ".{3}", "(a|b)c"])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(top_k=5, seed=3), Sampling(top_k=0, min_p=0.1, seed=3)], ids=str)
def test_choices_are_those_of_masked_logits(pattern: str, sampling: Sampling) -> None:
    engine, _ = engine_of(scripted(b"a", 1))
    for seed in range(20):
        logits = chaotic(VOCAB)((seed,))
        sampler, guide = guided(engine, Regex(pattern), sampling)
        masked = np.full(VOCAB, -np.inf, np.float32)
        masked[guide.allowed()] = logits[guide.allowed()]
        expected = Sampler(sampling, []).pick(FakeStep(np.array([masked.argmax()]), masked[None]), 0, seed)
        assert sampler.pick(FakeStep(np.array([logits.argmax()]), logits[None]), 0, seed) == expected


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=1)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("pattern", ["abc", "[ab]"])
def test_a_constraint_of_banned_tokens_is_an_error(pattern: str, sampling: Sampling) -> None:
    engine, _ = engine_of(scripted(b"abc", 1))
    bias = ((ord("a"), -np.inf), (ord("b"), -np.inf))
    options = Options(Sampling(sampling.temperature, logit_bias=bias), constraint=Regex(pattern))
    with pytest.raises(TrigraphError, match="banned by logit_bias"):
        engine.generate([1], options).run()


def test_a_chat_can_be_constrained() -> None:
    engine, _ = engine_of(scripted(b"maybe", 0), context=200, template=TEMPLATE)
    chat = engine.chat()
    for _ in range(2):
        assert chat.say("Is it?", Options(GREEDY, constraint=Regex("yes|no"))).run() in ("yes", "no")
    assert len(chat.messages) == 4


@pytest.mark.parametrize(
    ("make", "value", "text"),
    [
        (JsonSchema, '{"type": ', "the JSON schema cannot be used: it is not JSON"),
        (JsonSchema, "[" * 10**5, "the JSON schema cannot be used: it is not JSON"),
        (JsonSchema, "3", "it must be a JSON object"),
        (JsonSchema, '{"type": "objet"}', "Invalid type: objet"),
        (JsonSchema, '{"$ref": "https://example.org/schema"}', "not present"),
        (Grammar, "start: foo bar", 'unknown name: "foo"'),
        (Grammar, 'root ::= "a', "the grammar cannot be used"),
        (Grammar, "", "it has no rule root"),
        (Grammar, "root ::= ", "the rule root is empty"),
        (Grammar, "root ::= a\na ::= b\n" * 600, "more than 1,000 rules"),
        (Grammar, "root ::= a\na ::= # nothing\n", "the rule a is empty"),
        (Grammar, "root ::= " + '"a" ' * 70_000, "the grammar cannot be used: it has more than 262,144 characters"),
        (Regex, "a" * 262_145, "it has more than 262,144 characters"),
        (JsonSchema, json.dumps({"title": "a" * (1 << 20)}), "it has more than 1,048,576 characters"),
        (JsonSchema, json.dumps({"required": [f"{i:x}" for i in range(60_000)]}), "names more than 4,000 properties"),
        (JsonSchema, json.dumps({"properties": {f"{i}": {} for i in range(4001)}}), "names more than 4,000 properties"),
        (JsonSchema, json.dumps({"propertyNames": {"enum": ["a"] * 4001}}), "names more than 4,000 properties"),
        (JsonSchema, json.dumps({"patternProperties": {f"^{i}": {} for i in range(101)}}), "more than 100 patterns"),
        (Regex, "a(", "the regular expression cannot be used: .*unclosed group"),
        (Regex, "(?=a)", "the regular expression cannot be used"),
        (
            JsonSchema,
            '{"items":' * 500 + "{}" + "}" * 500,
            "the JSON schema cannot be used: it is nested more than 100 deep",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_malformed_constraints_are_refused(make: type[Any], value: str, text: str) -> None:
    with pytest.raises(TrigraphError, match=text):
        make(value)


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (Grammar("start: start"), "no text fits"),
        (Regex("((a{1000}){1000}){1000}"), "too many expressions"),
        (JsonSchema('{"$ref": "#"}'), "no text fits"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_constraints_without_an_end_are_given_up(constraint: Constraint, reason: str) -> None:
    engine, _ = engine_of(scripted(b"abc", 1))
    with pytest.raises(TrigraphError, match=f"cannot be followed any further: .*{reason}"):
        engine.generate([1], Options(GREEDY, constraint=constraint)).run()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(TrigraphError, match=r"pip install llguidance"):
        Regex("a")


def test_equal_constraints_are_equal() -> None:
    assert len({Regex("a"), Regex("a"), Grammar(LARK), JsonSchema("{}"), Options(constraint=Regex("a"))}) == 4
