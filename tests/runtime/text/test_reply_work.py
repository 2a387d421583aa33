"""The work of taking a reply apart grows with its length alone, whatever is in it: it is done on the server's loop."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from support.servers.replies import JSON, XML
from support.servers.reply_cases import TOOLS
from trigraph.runtime.text.reply_parser import ReplyFormat, ReplyParser

_VALUE = "<tool_call>\n<function=write>\n<parameter=content>\n"
# What a reply begins with, and what comes again and again.
_REPEATED = {
    "text in a value": (_VALUE, "some text\n"),
    "white space in a value": (_VALUE, " \n"),
    "closing tags in a value": (_VALUE, "</parameter>\n"),
    "ends of calls in a value": (_VALUE, "</parameter> </tool_call x\n"),
    "parameters in a value": (_VALUE, "\n<parameter=path>\n"),
    "parameters and closing tags": (_VALUE, "\n<parameter=path>\nx</parameter>\n"),
    "beginnings of tags": (_VALUE, "<"),
    "a list": (_VALUE.replace("write", "typed").replace("content", "a") + "[", '"a</parameter> <parameter=n>", '),
    "broken lists": ("<tool_call>\n<function=typed>\n", '<parameter=a>["</parameter><parameter=any>{"</parameter>'),
    "unclosed parameters": ("<tool_call>\n<function=typed>\n", "<parameter=x>\n1\n<parameter=n>\n2\n</parameter>\n"),
    "calls": ("", "<tool_call>\n<function=now>\n</function>\n</tool_call>\n"),
    "undeclared calls": ("", "<tool_call>\n<function=no>\n</function>\n</tool_call>\n"),
    "a call that is not declared": (_VALUE.replace("write", "no"), "text\n"),
    "openings": ("", "<tool_call>\n"),
    "functions": ("", "<function=now>\n"),
    "fences": ("", "```\n"),
    "marks": ("", "`"),
    "white space": ("", "\n "),
    "calls in a fence": ("```\n", "<tool_call>\n<function=now>\n</function>\n</tool_call>\n"),
    "calls in a thought": ("<think>\n", "<tool_call>\n<function=now>\n</function>\n</tool_call> x\n"),
}
_HERMES = {
    "a string": ('<tool_call>\n{"name": "write", "arguments": {"content": "', 'a</tool_call>\\n"'),
    "another order": ('<tool_call>\n{"arguments": {"content": "', "a \\n"),
    "brackets": ('<tool_call>\n{"name": "write", "arguments": {"content": ', "["),
    "braces": ('<tool_call>\n{"name": "write", "arguments": {}', "}"),
    "no calls": ("", "<tool_call>\n{}"),
}
_CASES: dict[str, tuple[ReplyFormat, str, str]] = {
    **{name: (XML, *parts) for name, parts in _REPEATED.items()},
    **{f"JSON: {name}": (JSON, *parts) for name, parts in _HERMES.items()},
}


def work(format: ReplyFormat, reply: str) -> int:
    """How many functions are called, and characters held back from one piece to the next."""
    count = 0

    def called(frame: Any, event: str, value: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    parser = ReplyParser(format, TOOLS)
    sys.setprofile(called)
    for at in range(0, len(reply), 5):
        parser.push(reply[at : at + 5])
        count += len(parser._lexemes._tail)
    parser.finish()
    sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", _CASES)
def test_four_times_the_text_is_four_times_the_work(name: str) -> None:
    format, head, again = _CASES[name]
    work(format, head)  # what is compiled once
    short, long = (work(format, head + again * (length // len(again))) for length in (2000, 8000))
    assert long < 5 * short + 1000
