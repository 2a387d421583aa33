"""Calls as JSON."""

from __future__ import annotations

from typing import Any

from support.servers.replies import JSON
from support.servers.reply_cases import Case, Thought, hermes

WRITE = hermes("write", path="a", content="b")
WRITTEN = ("write", {"path": "a", "content": "b"})
NOW = hermes("now")
_HEAD = '<tool_call>\n{"name": "write", "arguments": '
# A reply and what is found in it.
_WHOLE: dict[str, tuple[str, list[Any]]] = {
    "a call": (WRITE, [WRITTEN]),
    "after a thought and text": (
        f"<think>\nhm\n</think>\n\nSo:\n{WRITE}\n{NOW}",
        [Thought("hm"), "So:", WRITTEN, ("now", {})],
    ),
    "on one line": (
        '<tool_call>{"name":"write","arguments":{"path":"a","b":[{}]}}</tool_call>!',
        [("write", {"path": "a", "b": [{}]}), "!"],
    ),
    "tags in strings": (
        hermes("write", path='}]"</tool_call><tool_call>\n{', content="\\"),
        [("write", {"path": '}]"</tool_call><tool_call>\n{', "content": "\\"})],
    ),
    "a call in a string": (hermes("write", content=NOW), [("write", {"content": NOW})]),
    "another order": (
        '<tool_call>\n{"arguments": {"path": "ü</tool_call>"}, "name": "write"}\n</tool_call>',
        [("write", {"path": "ü</tool_call>"})],
    ),
    "arguments in a string": (
        '<tool_call>\n{"name": "write", "arguments": "{\\"path\\": 1}"}\n</tool_call>',
        [("write", {"path": 1})],
    ),
    "half a character": (
        '<tool_call>\n{"arguments": {"path": "\\ud83d"}, "name": "write"}\n</tool_call>',
        [("write", {"path": "\ufffd"})],
    ),
    "half a character in a string": (
        '<tool_call>\n{"name": "write", "arguments": "{\\"path\\": \\"\\\\ude00\\"}"}\n</tool_call>',
        [("write", {"path": "\ufffd"})],
    ),
    "a list for a name": (
        '<tool_call>\n{"arguments": {}, "name": ["write"]}\n</tool_call>',
        ['<tool_call>\n{"arguments": {}, "name": ["write"]}\n</tool_call>'],
    ),
    "no arguments": ('<tool_call>\n{"name": "now"}\n</tool_call>', [("now", {})]),
    "more keys": ('<tool_call>\n{"id": 1, "name": "now", "arguments": {}}\n</tool_call>', [("now", {})]),
    "more keys behind": (
        '<tool_call>\n{"name": "now", "arguments": {}, "id": "}"}\n</tool_call>\nok',
        [("now", {}), "ok"],
    ),
    "text behind": (f"{WRITE}\n\nDone.", [WRITTEN, "Done."]),
    "a forgotten end of a call": ('<tool_call>\n{"name": "now", "arguments": {}}\n' + WRITE, [("now", {}), WRITTEN]),
    "a forgotten brace": ('<tool_call>\n{"name": "now", "arguments": {}\n</tool_call>\nok', [("now", {}), "ok"]),
    "two forgotten braces": (_HEAD + '{"path": "a"\n</tool_call>\nok', [("write", {"path": "a"}), "ok"]),
    "forgotten brackets": (_HEAD + '{"path": ["a"\n</tool_call>', [("write", {"path": ["a"]})]),
    "forgotten braces, another order": (
        '<tool_call>\n{"name": "write", "x": 1, "arguments": {"path": "a"\n</tool_call>',
        [("write", {"path": "a"})],
    ),
    "the reply ends in braces": (_HEAD + '{"path": "a"', [("write", {"path": "a"})]),
    "the reply ends in a string": (_HEAD + '{"path": "a', [("write", '{"path": "a')]),
    "an undeclared function": (f"So:\n{hermes('nothing', a=1)}\nok", [f"So:\n{hermes('nothing', a=1)}\nok"]),
    "an undeclared function with a call": (hermes("nothing", a=NOW), [hermes("nothing", a=NOW)]),
    "no JSON": (
        'So\n<tool_call>\n{"name": now}\n</tool_call>\nok',
        ['So\n<tool_call>\n{"name": now}\n</tool_call>\nok'],
    ),
    "no object": ("So\n<tool_call>\n[]\n</tool_call>", ["So\n<tool_call>\n[]\n</tool_call>"]),
    "arguments that are none": (
        '<tool_call>\n{"name": "now", "arguments": 3}\n</tool_call>',
        ['<tool_call>\n{"name": "now", "arguments": 3}\n</tool_call>'],
    ),
    "a tag in a sentence": (
        'Use `<tool_call>{"name": "now", "arguments": {}}</tool_call>`.',
        ['Use `<tool_call>{"name": "now", "arguments": {}}</tool_call>`.'],
    ),
    "a fenced example": (f"So:\n```json\n{NOW}\n```\n{NOW}", [f"So:\n```json\n{NOW}\n```", ("now", {})]),
    "JSON without a tag": ('{"name": "now", "arguments": {}}', ['{"name": "now", "arguments": {}}']),
    "CRLF": (WRITE.replace("\n", "\r\n") + "\r\n", [WRITTEN]),
    "unicode": (hermes("write", path="größe 😀"), [("write", {"path": "größe 😀"})]),
    "escapes": (_HEAD + '{"path": "\\u00e4\\n\\"\\\\"}}\n</tool_call>', [("write", {"path": 'ä\n"\\'})]),
}
CASES = {f"JSON: {name}": Case(reply, found, JSON) for name, (reply, found) in _WHOLE.items()}
_CUT: dict[str, tuple[str, list[Any]]] = {
    "behind a tag": ("So:\n<tool_call>\n", ["So:"]),
    "in a name": ('So:\n\n<tool_call>\n{"name": "wr', ["So:"]),
    "before arguments": ('So:\n\n<tool_call>\n{"name": "write", "argum', ["So:"]),
    "in arguments": (_HEAD + '{"path": "a', [("write", '{"path": "a')]),
    "in an escape": (_HEAD + '{"path": "a\\', [("write", '{"path": "a\\')]),
    "behind a value": (_HEAD + '{"path": "a"', [("write", '{"path": "a"')]),
    "behind arguments": (_HEAD + '{"path": "a"}', [("write", {"path": "a"})]),
    "behind a call": (f"{WRITE}\n{_HEAD}" + '{"pa', [WRITTEN, ("write", '{"pa')]),
    "in another order": ('So:\n<tool_call>\n{"arguments": {"path": "a"', ["So:"]),
}
CASES |= {f"JSON cut {name}": Case(reply, found, JSON, ended="cut") for name, (reply, found) in _CUT.items()}
CASES |= {
    "JSON in a thought": Case(
        f"hm\n{WRITE}\nor\n</think>\n\n{NOW}", [Thought(f"hm\n{WRITE}\nor"), ("now", {})], JSON, True
    ),
    "JSON that ends a thought": Case(f"hm\n{WRITE}\n{NOW}", [Thought("hm"), WRITTEN, ("now", {})], JSON, True),
    "JSON stopped": Case(NOW.removesuffix("</tool_call>"), [("now", {})], JSON, ended="stopped"),
    "JSON stopped in arguments": Case(_HEAD + '{"path": "a"', [("write", '{"path": "a"')], JSON, ended="stopped"),
}
