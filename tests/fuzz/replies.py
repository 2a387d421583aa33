"""Tool calls as chat templates write them, with hostile values: undamaged ones come back exactly.

Damage leaves the text of each argument in that argument, or outside of all; whatever comes, the pieces that it comes in
make no difference, and what is a whole call has a declared name and a JSON object.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

from support.servers.replies import JSON, XML
from support.servers.reply_cases import Thought, shown
from trigraph.runtime.text.lexemes import Ending
from trigraph.runtime.text.reply import Event
from trigraph.runtime.text.reply_parser import ReplyFormat, ReplyParser

_KEYS = ("path", "content", "mode", "a b", "größe")
_OPENS_CALL = r"(?:<tool_call>\s*)?<function=(?:write|send)>"
# Where the rules see the end of a value, in the words of the page and not of the parser.
_ENDS = re.compile(
    rf"</parameter>\s*(?:<parameter=[^<>\n]+>|</function>|</tool_call>|{_OPENS_CALL})"
    rf"|</function>\s*(?:</tool_call>|{_OPENS_CALL})|</tool_call>\s*{_OPENS_CALL}"
)
_TEXTS = (
    "hello", " ", "\n", "\n\n", "\r\n", "\t", "<", ">", '"', "\\", "größe", "😀", "{", "[", "'", "12", "None", "```\n",
    "~~~", "</parameter>", "\n</parameter>\n", "</function>", "</tool_call>", "<tool_call>", "<function=write>",
    "<function=no>", "\n<parameter=path>\n", "\n<parameter=content>\n", "\n  <parameter=mode>", "<parameter=",
    "<parameter=other>", "</param", "<think>", "</think>", '{"name": "write", "arguments": {', "}}", "\\n",
    "<tool_call>\n{",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    0, -3, 12345678901234567890, 1.5, -1e300, True, False, None, [], ["</parameter></function>", 1, None],
    {"a": {"b": "\n"}},
)  # fmt: skip
_STRING = {"type": "string"}
_TYPED = {
    "n": {"type": "integer"}, "x": {"type": "number"}, "b": {"type": "boolean"},
    "maybe": {"type": ["integer", "null"]}, "a": {"type": "array"}, "o": {"type": "object"},
}  # fmt: skip
_FITS: dict[str, Any] = {"n": int, "x": float, "b": bool, "maybe": (int, type(None)), "a": list, "o": dict}
TOOLS = [
    {"name": name, "parameters": {"properties": {**dict.fromkeys(_KEYS, _STRING), **_TYPED}}}
    for name in ("write", "send")
]
Call = tuple[str, dict[str, Any]]


class Fuzzer:
    """Writes replies, damages them, and has them read in random pieces."""

    def __init__(self, folder: Path) -> None:
        pass

    def run(self, seed: int, case: int) -> str:
        """One reply; returns what was done to it."""
        rng = random.Random(f"{seed}:{case}")
        return rng.choice((_exact, _exact, _damaged, _damaged, _garbled))(rng)


def _exact(rng: random.Random) -> str:
    format = rng.choice((XML, JSON))
    calls = [_call(rng, plain=format is JSON) for _ in range(rng.randint(1, 3))]
    write = _xml if format is XML else _json
    thought, content = rng.choice(("", "Hm, so.")), rng.choice(("", "I write `<tool_call>`."))
    reply = "\n".join(write(name, arguments) for name, arguments in calls)
    if content:
        reply = f"{content}\n\n{reply}"
    if thought:
        reply = f"<think>\n{thought}\n</think>\n\n{reply}"
    wanted = [*([Thought(thought)] if thought else []), *([content] if content else [])]
    right: list[Any] = [(type(item), item) for item in wanted]
    right += [[name, "= " + json.dumps(arguments, ensure_ascii=False)] for name, arguments in calls]
    found = shown(_read(rng, reply, format))
    assert found == right, f"{reply!r} was read as {found!r}"
    return "exact"


def _damaged(rng: random.Random) -> str:
    """Closing tags are left out, tags get attributes, parameters come twice: no text changes its place."""
    calls, reply = [], ""
    for number in range(rng.randint(1, 3)):
        name, arguments = _call(rng, plain=True, earlier=True)
        marked = {
            key: f"#{number}{key}#{value}" if isinstance(value, str) and key in _KEYS else value
            for key, value in arguments.items()
        }
        calls.append((name, marked))
        reply += _worn(rng, name, marked)
    ended: Ending = rng.choice(("whole", "whole", "cut", "stopped"))
    if ended != "whole":
        reply = reply[: rng.randrange(len(reply) + 1)]
    for event in shown(_read(rng, reply, XML, ended)):
        if isinstance(event, list):
            arguments = _partial(event[1])
            for key, value in arguments.items():
                marks = re.findall(r"#(\d[^#]*)#", str(value))
                assert "#twice#" not in str(value), f"{reply!r}: {key} was given twice, and the second stands"
                assert {mark[1:] for mark in marks} <= {key}, f"{reply!r}: {key} has the text of {marks}"
                assert len({mark[0] for mark in marks}) <= 1, f"{reply!r}: {key} has the text of two calls"
    return "damaged"


def _garbled(rng: random.Random) -> str:
    """Any damage."""
    format = rng.choice((XML, JSON))
    write = _xml if format is XML else _json
    reply = "".join(
        rng.choice((write(*_call(rng, plain=format is JSON)), rng.choice(_TEXTS))) for _ in range(rng.randint(1, 4))
    )
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(reply) + 1)
        reply = reply[:at] + rng.choice(("", *_TEXTS)) + reply[at + rng.choice((0, 0, 1, 3, 20)) :]
    ended: Ending = rng.choice(("whole", "cut", "stopped"))
    found = _read(rng, reply, format, ended)
    again = shown(_read(rng, reply, format, ended))
    assert shown(found) == again, f"{reply!r} was read as {shown(found)!r} and as {again!r}"
    for item in again:
        if isinstance(item, list):
            assert item[0] in ("write", "send"), f"{reply!r}: {item[0]} is not declared"
            assert item[1].startswith("= ") or not _is_json(item[1]), f"{reply!r}: a cut call looks whole: {item[1]}"
            assert format is JSON or not item[1].startswith("no JSON"), f"{reply!r}: {item[1]}"
    return "garbled"


def _call(rng: random.Random, *, plain: bool, earlier: bool = False) -> Call:
    """`plain`: values may be any JSON has. `earlier`: parameters that a value's text names come before it."""
    keys = rng.sample(_KEYS, rng.randint(0, len(_KEYS)))
    arguments: dict[str, Any] = {}
    for key in keys:
        text = "".join(rng.choices(_TEXTS, k=rng.randint(0, 8)))
        given = {*arguments, key} if earlier else {*keys}
        arguments[key] = _tame(text, given)
    for key in rng.sample([*_TYPED], rng.randint(0, 3)):
        values = [
            value for value in _VALUES if isinstance(value, _FITS[key]) and isinstance(value, bool) == (key == "b")
        ]
        arguments[key] = rng.choice(values)
    return rng.choice(("write", "send")), arguments


def _tame(text: str, given: set[str]) -> str:
    """The text without what ends a value by the rules."""
    while _ENDS.search(text):
        text = _ENDS.sub(lambda match: match[0].replace("</", "< ", 1), text)
    tag = re.compile(r"(^|\n)([ \t\r]*)<parameter=([^<>\n]+)>")
    return tag.sub(
        lambda m: m[0] if m[3] in given or m[3] not in {*_KEYS, *_TYPED} else f"{m[1]}.<parameter={m[3]}>", text
    )


def _written(value: Any) -> str:
    """A value as templates write it."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def _xml(name: str, arguments: dict[str, Any]) -> str:
    parameters = "".join(f"<parameter={key}>\n{_written(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def _json(name: str, arguments: dict[str, Any]) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'


def _worn(rng: random.Random, name: str, arguments: dict[str, Any]) -> str:
    """A call as a careless model writes it."""
    newline = rng.choice(("\n", "\n", "\r\n", "\n  "))
    attribute = rng.choice(("", "", ' type="string"', " "))
    parts = []
    forgets = rng.random() < 0.5  # closing tags; others give parameters twice
    for key, value in arguments.items():
        closing = "" if forgets and rng.random() < 0.4 else "</parameter>"
        parts.append(f"<parameter={key}{attribute}>\n{_written(value)}\n{closing}{newline if closing else ''}")
        if not forgets and rng.random() < 0.2:
            parts.append(f"<parameter={key}>\n#twice#\n</parameter>{newline}")
    # One closing tag at least is there.
    ends = rng.choice(
        (("</function>", "</tool_call>"), ("</function>",), ("</tool_call>",), ("</function>", "</tool_call>"))
    )
    opening = rng.choice((f"<tool_call>{newline}", f"<tool_call>{newline}", ""))
    return f"{opening}<function={name}>{newline}{''.join(parts)}{newline.join(ends)}\n"


def _read(rng: random.Random, reply: str, format: ReplyFormat, ended: Ending = "whole") -> list[Event]:
    """The events of a reply that comes in random pieces."""
    parser, at, events = ReplyParser(format, TOOLS), 0, list[Event]()
    most = rng.choice((1, 5, 50, len(reply) + 1))
    while at < len(reply):
        size = rng.randint(1, most)
        events += parser.push(reply[at : at + size])
        at += size
    return events + parser.finish(ended)


def _partial(text: str) -> dict[str, Any]:
    """Arguments, of which the rest may be missing."""
    if text.startswith("= "):
        found: dict[str, Any] = json.loads(text[2:])
        return found
    from pydantic_core import from_json

    read = from_json(text, allow_partial="trailing-strings") if text else {}
    return read if isinstance(read, dict) else {}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
