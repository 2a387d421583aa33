"""Drafts made visible: the marks stand where drafts were, and the text without them is the text."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from support.command import Run
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.cli.demonstration import compared, marked

OPTIONS = Options(Sampling(0.7, seed=1), max_tokens=60, draft_tokens=3)


@pytest.fixture(scope="module")
def engine(tiny_package: Path) -> Engine:
    return load(tiny_package, threads=1)


@pytest.mark.parametrize("colour", [False, True])
def test_marks(engine: Engine, colour: bool) -> None:
    request = engine.generate("In the beginning", OPTIONS)
    text = "".join(marked(request, engine.tokenizer, colour=colour))
    green, red = ("\x1b[32m", "\x1b[31m") if colour else ("[", "×")
    rounds = request.rounds
    assert text.count("×") == sum(one.drafted - one.accepted for one in rounds) > 0
    if colour:
        assert text.count(green) == sum(one.accepted > 0 for one in rounds) > 0
        assert text.count(red) == sum(one.drafted > one.accepted for one in rounds)
    else:
        assert text.count(green) == sum(one.drafted > 0 for one in rounds)
        accepted = "".join(re.findall(r"\[([^×\]]*)×*\]", text))
        assert accepted and "×" not in accepted
    assert re.sub(r"\x1b\[\d+m|[\[\]×]", "", text) == request.text


def test_the_command(trigraph: Run, engine: Engine, tiny_package: Path) -> None:
    result = trigraph("run", tiny_package, "-p", "In the beginning", "-n", 60, "--seed", 1, "--show-drafts")
    assert result.status == 0
    expected = engine.generate("In the beginning", replace(OPTIONS, draft_tokens=None))
    assert re.sub(r"[\[\]×]", "", result.out) == f"In the beginning{expected.run()}\n"
    drafted, plain, *_ = result.err.splitlines()
    assert re.match(r"with drafts: +60 tokens in \d+ rounds, \d+ of \d+ drafts accepted", drafted)
    assert re.match(r"without drafts: 60 tokens in 59 rounds, .*, the same text", plain)


def test_it_says_when_drafts_do_not_pay(engine: Engine) -> None:
    request = engine.generate("In the beginning", OPTIONS)
    request.run()
    slow = request.stats
    fast = replace(slow, seconds=slow.seconds / 2)
    assert "does not pay here" in "".join(compared(slow, fast, same=True))
    assert "does not pay" not in "".join(compared(fast, slow, same=True))
    assert "ANOTHER TEXT" in "".join(compared(fast, slow, same=False))
