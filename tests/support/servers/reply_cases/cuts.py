"""Replies that a limit has cut, or a stop string."""

from __future__ import annotations

from typing import Any

from support.servers.reply_cases import Case, xml, xml_call

_HEAD = "<tool_call>\n<function=write>\n<parameter=path>\n"
# What a limit has left, and what is found in it.
_CUT: dict[str, tuple[str, list[Any]]] = {
    "in a tag": ("So:\n\n<tool", ["So:"]),
    "behind a tag": ("So:\n\n<tool_call>", ["So:"]),
    "behind a tag, and a line": ("So:\n\n<tool_call>\n", ["So:"]),
    "before a function": ("So:\n\n<tool_call>\n<funct", ["So:"]),
    "in a function": ("So:\n\n<tool_call>\n<function=wri", ["So:"]),
    "in a function without a tag": ("So:\n<function=wri", ["So:"]),
    "behind a function": ("So:\n\n<tool_call>\n<function=write>", ["So:", ("write", "{")]),
    "behind a function, and a line": ("<tool_call>\n<function=write>\n", [("write", "{")]),
    "before a parameter": ("<tool_call>\n<function=write>\n<par", [("write", "{")]),
    "in a parameter": ("<tool_call>\n<function=write>\n<parameter=pat", [("write", "{")]),
    "behind a parameter": (_HEAD, [("write", '{"path": "')]),
    "in a value": (_HEAD + "Ro", [("write", '{"path": "Ro')]),
    "behind a value's line": (_HEAD + "Rome\n", [("write", '{"path": "Rome')]),
    "in a closing tag": (_HEAD + "Rome\n</param", [("write", '{"path": "Rome')]),
    "at the first character of a tag": (_HEAD + "Rome\n<", [("write", '{"path": "Rome')]),
    "behind a closing tag": (_HEAD + "Rome\n</parameter>", [("write", '{"path": "Rome"')]),
    "before another parameter": (_HEAD + "Rome\n</parameter>\n<parameter=co", [("write", '{"path": "Rome"')]),
    "in another parameter": (
        _HEAD + "Rome\n</parameter>\n<parameter=content>\n",
        [("write", '{"path": "Rome", "content": "')],
    ),
    "before the end of a function": (_HEAD + "Rome\n</parameter>\n</func", [("write", '{"path": "Rome"')]),
    "behind the end of a function": (_HEAD + "Rome\n</parameter>\n</function>", [("write", {"path": "Rome"})]),
    "before the end of a call": (_HEAD + "Rome\n</parameter>\n</function>\n</tool", [("write", {"path": "Rome"})]),
    "behind a call": (_HEAD + "Rome\n</parameter>\n</function>\n</tool_call>\n", [("write", {"path": "Rome"})]),
    "behind what may be the end of a function": (_HEAD + "Rome</function>", [("write", '{"path": "Rome')]),
    "behind what may be the end of a call": (_HEAD + "Rome\n</tool_call>\n", [("write", '{"path": "Rome')]),
    "in a closing tag that is text": (_HEAD + "a </parameter> b", [("write", '{"path": "a </parameter> b')]),
    "behind a whole call": (xml("now") + "\n" + _HEAD + "Ro", [("now", {}), ("write", '{"path": "Ro')]),
    "behind a whole call, in a tag": (xml("now") + "\n<tool_call>\n<fun", [("now", {})]),
    "in text behind a call": (xml("now") + "\nDone <", [("now", {}), "Done "]),
    "at what may be another parameter": (_HEAD + "a\n<parameter=mode>\nb", [("write", '{"path": "a", "mode": "b')]),
    "in an undeclared function": (
        "<tool_call>\n<function=no>\n<parameter=a>\nb",
        ["<tool_call>\n<function=no>\n<parameter=a>\nb"],
    ),
    "in text": ("So it is.\n\n", ["So it is.\n\n"]),
    "in a fence": (
        "```\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n``",
        ["```\n<tool_call>\n<function=now>\n</function>\n</tool_call>"],
    ),
}
CASES = {f"cut {name}": Case(text, found, ended="cut") for name, (text, found) in _CUT.items()}


def _typed(name: str, text: str) -> str:
    return xml_call("typed", {name: text}).partition("\n</parameter>")[0]


CASES |= {
    "cut in an integer": Case(_typed("n", "12"), [("typed", "{")], ended="cut"),
    "cut in a list": Case(_typed("a", '["a", "b'), [("typed", '{"a": ["a", "b')], ended="cut"),
    "cut in a list, in a tag": Case(
        _typed("a", '["a", "</parameter>'), [("typed", '{"a": ["a", "</parameter>')], ended="cut"
    ),
    "cut behind an integer": Case(_typed("n", "12") + "\n</parameter>", [("typed", '{"n": 12')], ended="cut"),
    "stopped in a value": Case(_HEAD + "Ro", [("write", '{"path": "Ro')], ended="stopped"),
    "stopped behind a value": Case(_HEAD + "Rome\n</parameter>\n", [("write", {"path": "Rome"})], ended="stopped"),
    "stopped behind a function": Case(
        _HEAD + "Rome\n</parameter>\n</function>\n", [("write", {"path": "Rome"})], ended="stopped"
    ),
    "stopped before parameters": Case("<tool_call>\n<function=now>\n", [("now", {})], ended="stopped"),
    "stopped in text": Case("So <tool", ["So <tool"], ended="stopped"),
}
