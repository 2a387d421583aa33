"""Replies as models write them: each case in one piece, cut in two at every place, and character by character."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from support.servers.reply_cases import TOOLS, Case, cuts, expected, hermes_calls, prose, shown, values
from trigraph.runtime.text.reply import Event
from trigraph.runtime.text.reply_parser import ReplyParser

CASES = values.CASES | prose.CASES | cuts.CASES | hermes_calls.CASES


def events_of(case: Case, pieces: Iterable[str]) -> list[Event]:
    """The events of a case's reply that comes in pieces."""
    parser = ReplyParser(case.format, TOOLS, thinking=case.thinking)
    return [event for piece in pieces for event in parser.push(piece)] + parser.finish(case.ended)


def test_there_are_enough_cases() -> None:
    parts = (values.CASES, prose.CASES, cuts.CASES, hermes_calls.CASES)
    assert len(CASES) == sum(map(len, parts)) >= 150


@pytest.mark.parametrize("name", CASES)
def test_a_reply(name: str) -> None:
    case, reply = CASES[name], CASES[name].reply
    right = expected(case.found)
    assert shown(events_of(case, [reply])) == right
    assert shown(events_of(case, reply)) == right, "character by character"
    for at in range(1, len(reply), 1 + len(reply) // 200):
        assert shown(events_of(case, [reply[:at], reply[at:]])) == right, (reply[:at], reply[at:])
