"""Reasoning efforts: which a chat template takes, and which of those a client's becomes."""

from __future__ import annotations

import pytest

from support.models.real_vocabulary import real_template
from trigraph.runtime.text.efforts import EFFORTS, efforts_note, nearest_effort
from trigraph.runtime.text.template import ChatTemplate

TAKES = "{% if reasoning_effort is defined and reasoning_effort not in (%s) %}{{ raise_exception('no') }}{% endif %}"
QWEN = ("low", "medium", "xhigh")
# What a template takes, and what it is given for each of EFFORTS and for a name of its own.
CASES = {
    QWEN: ("low", "low", "low", "medium", "xhigh", "xhigh", "xhigh"),
    ("low", "medium", "high"): ("low", "low", "low", "medium", "high", "high", "high"),
    ("none", "high", "max"): ("none", "high", "high", "high", "high", "max", "max"),
    ("medium",): ("medium",) * 7,
    ("none",): ("none",) * 7,
    EFFORTS: EFFORTS,
}


@pytest.mark.parametrize("taken", CASES)
def test_the_nearest_effort(taken: tuple[str, ...]) -> None:
    assert tuple(nearest_effort(effort, taken) for effort in EFFORTS) == CASES[taken]
    assert nearest_effort("ultra", taken) == "ultra", "the template may know it, or says what it takes"


@pytest.mark.parametrize("taken", CASES)
def test_efforts_are_found_by_rendering(taken: tuple[str, ...]) -> None:
    source = TAKES.replace("%s", ", ".join(f"'{effort}'" for effort in taken) + ",")
    assert ChatTemplate(source, {}).efforts == taken


@pytest.mark.parametrize(
    "source", ["{{ messages[0].content }}", "{{ reasoning_effort.x.y }}", "{% if reasoning_effort"]
)
def test_a_template_that_takes_none_is_given_any(source: str) -> None:
    assert ChatTemplate(source, {}).efforts == EFFORTS
    assert efforts_note(EFFORTS) is None


def test_a_real_template() -> None:
    template = ChatTemplate(real_template("qwen3_8"), {})
    assert template.efforts == QWEN
    assert efforts_note(template.efforts) == (
        "the chat template takes the reasoning efforts low, medium, xhigh; "
        "it is given minimal as low, high and max as xhigh"
    )
