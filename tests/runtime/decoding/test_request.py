"""What requests ask for, and what they may not: every wrong type or value is an error of ours, at once."""

import re

import numpy as np
import pytest

from support.fakes.engine import GREEDY, engine_of, scripted
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Grammar, JsonSchema, Options, Regex, Sampling


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("stop", "th", "stop is 'th'; it must be a tuple of strings"),
        ("stop", (1,), "must be a tuple of strings"),
        ("stop", None, "must be a tuple of strings"),
        ("max_tokens", 2.5, "max_tokens is 2.5; it must be a whole number"),
        ("max_tokens", "9", "must be a whole number"),
        ("max_tokens", True, "must be a whole number"),
        ("max_tokens", -1, "max_tokens is -1; it must be 0 or more"),
        ("draft_tokens", 1.0, "must be a whole number"),
        ("draft_p_min", "0.5", "must be a number"),
        ("draft_p_min", 1.5, "must be from 0 to 1"),
        ("ignore_eos", "no", "must be True or False"),
        ("speculate", 1, "must be True or False"),
        ("sampling", {"temperature": 0}, "it must be a Sampling"),
        ("constraint", '{"type": "object"}', "it must be a JsonSchema, Grammar or Regex"),
    ],
)
def test_options_of_other_types_are_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(TrigraphError, match=re.escape(message)):
        Options(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", "0.7", "must be a number"),
        ("temperature", None, "must be a number"),
        ("top_k", 2.5, "top_k is 2.5; it must be a whole number"),
        ("seed", 1.0, "must be a whole number"),
        ("penalty_window", "all", "must be a whole number"),
        ("logit_bias", {3: 5.0}, "give pairs of a token id and a number"),
        ("logit_bias", (3, 5.0), "give pairs"),
        ("logit_bias", (("3", 5.0),), "give pairs"),
        ("logit_bias", ((3, None),), "give pairs"),
        ("logit_bias", ((3, float("nan")),), "logit_bias of token 3 is nan; it must be from -1e+30 to 1e+30, or -inf"),
    ],
)
def test_samplings_of_other_types_are_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(TrigraphError, match=re.escape(message)):
        Sampling(**{field: value})  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    Options(Sampling(np.float32(0.5), np.int64(3), seed=np.uint64(7)), max_tokens=np.int32(4))  # type: ignore[arg-type]


@pytest.mark.parametrize("constraint", [JsonSchema, Grammar, Regex])
def test_constraints_are_strings(constraint: type) -> None:
    with pytest.raises(TrigraphError, match=r"it must be a string|give JSON text, a dict or a Pydantic model"):
        constraint(["type"])


@pytest.mark.parametrize("prompt", [[1.0], [1, 2.5], ["1"], b"abc", None, 7, [None], np.ones((2, 2), np.int64)])
def test_prompts_of_other_types_are_refused(prompt: object) -> None:
    engine, _ = engine_of(scripted(b"abc", 1))
    with pytest.raises(TrigraphError, match="it must be a string or a list of token ids"):
        engine.generate(prompt)  # type: ignore[arg-type]


def test_a_prompt_may_be_an_array() -> None:
    engine, _ = engine_of(scripted(b"abc", 2))
    assert engine.generate(np.array([1, 2]), Options(GREEDY, max_tokens=3)).run() == "abc"


def test_options_that_are_none_are_refused() -> None:
    engine, _ = engine_of(scripted(b"abc", 2))
    with pytest.raises(TrigraphError, match="it must be an Options"):
        engine.generate([1], {"max_tokens": 3})  # type: ignore[arg-type]


def test_steps_take_whole_token_ids() -> None:
    steps = engine_of(scripted(b"abc", 1))[0].steps
    sequence = steps.new_sequence()
    for ids in ([1.5], [True, 2.0], ["a"]):
        with pytest.raises(TrigraphError, match="token ids must be whole numbers"):
            steps.prefill([sequence], [ids])  # type: ignore[list-item]
    steps.prefill([sequence], [[1]])
    with pytest.raises(TrigraphError, match="token ids must be whole numbers"):
        steps.verify([sequence], [[2.5]])  # type: ignore[list-item]
