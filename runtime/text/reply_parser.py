"""Splits a reply, in pieces as it is generated, into reasoning, content and tool calls.

Two families of calls, by the chat template that the model was trained on:

    XML (Qwen3.5, Qwen3.6, Qwen3-Coder)         JSON (Hermes: Qwen3, Qwen3-Next)
    <tool_call>                                 <tool_call>
    <function=NAME>                             {"name": "NAME", "arguments": {...}}
    <parameter=NAME>                            </tool_call>
    VALUE
    </parameter>
    </function>
    </tool_call>

The methods of `ReplyParser` are this grammar: each is a generator of events, in the order of the text, which yields
None where it needs more of it. Line breaks beside tags belong to the tags. What only looks like a call is content.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trigraph.runtime.text.reply import Arguments, CallBegun, CallEnded, Content, Event, Reasoning
from trigraph.runtime.text.tag_reader import Parsing, TagReader
from trigraph.runtime.text.tool_arguments import parameters_of, typed, types_of

_THINK, _THINK_END = "<think>", "</think>"
_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER = "<parameter="
# The last two are there when a model forgets the first.
_VALUE_ENDS = ("\n</parameter>", "</parameter>", "\n<parameter=", "\n</function>\n</tool_call>")
_JSON_HEAD = re.compile(r'\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"arguments"\s*:\s*(?=\{)')


@dataclass(frozen=True)
class ReplyFormat:
    """How replies of a model are written: whether with thoughts, and the family of tool calls, "xml" or "json"."""

    thoughts: bool = False
    calls: str | None = None

    @classmethod
    def of_template(cls, source: str) -> ReplyFormat:
        """The format that a chat template (Jinja text) tells the model to keep to."""
        calls = None
        if _CALL in source:
            calls = "xml" if _FUNCTION in source else "json" if "arguments" in source else None
        return cls(_THINK_END in source, calls)

    def thinks(self, prompt: str) -> bool:
        """Whether a rendered prompt opens a thought, so that the reply begins within it."""
        return self.thoughts and prompt.rstrip().endswith(_THINK)


class ReplyParser:
    """Makes events of the text of one reply."""

    def __init__(
        self, format: ReplyFormat = ReplyFormat(), tools: Iterable[Mapping[str, Any]] = (), *, thinking: bool = False
    ) -> None:
        """`thinking`: the prompt has opened the thought. Without tools there are no calls.

        Raises TrigraphError for a tool without a name.
        """
        self._schemas = parameters_of(tools)
        self._calls = format.calls if self._schemas else None
        self._thoughts = format.thoughts
        self._count = 0
        self._reader = TagReader()
        self._parsing = self._reply(thinking)

    def push(self, text: str) -> list[Event]:
        """The events that more text completes."""
        self._reader.text += text
        events = []
        while (event := next(self._parsing, None)) is not None:
            events.append(event)
        return events

    def finish(self) -> list[Event]:
        """The last events, when the reply has ended."""
        self._reader.ended = True
        return self.push("")

    def _reply(self, thinking: bool) -> Parsing[None]:
        if self._thoughts and (yield from self._reader.accept(_THINK)):
            yield from self._reader.skip_lines()
            thinking = True
        if thinking:
            yield from self._thought()
        tags = {"xml": (_CALL, *(f"{_FUNCTION}{name}>" for name in self._schemas)), "json": (_CALL,)}
        while True:
            gap, tag = yield from self._reader.pass_on(Content, *tags.get(self._calls or "", ()))
            if not tag:
                return
            if tag != _CALL:  # the tag before it was forgotten
                self._reader.text, tag = tag + self._reader.text, ""
            read = yield from (self._xml_call() if self._calls == "xml" else self._json_call())
            if read is None:
                yield from self._reader.skip_lines()
            else:
                yield Content(gap + tag + read)

    def _thought(self) -> Parsing[None]:
        opener = {"xml": _FUNCTION, "json": "{"}.get(self._calls or "", "")
        while True:
            gap, tag = yield from self._reader.pass_on(Reasoning, _THINK_END, *([_CALL] if opener else []))
            if tag != _CALL:
                break
            opened = yield from self._reader.accept(opener)
            if not opened:
                yield Reasoning(gap + tag)
                continue
            # A call within a thought is part of it, unless the thought never ends and the reply ends with the call.
            text, tag = yield from self._reader.until(_THINK_END)
            text = _CALL + opened + text
            if not tag and text.rstrip().endswith(_CALL_END):
                self._reader.text = text
                return
            yield Reasoning(gap + (text.rstrip("\n") if tag else text))
            break
        yield from self._reader.skip_lines()

    def _xml_call(self) -> Parsing[str | None]:
        """A call; returns what was read if it is none."""
        read = yield from self._reader.accept(_FUNCTION)
        name, end = (yield from self._reader.until(">", "<", "\n")) if read else ("", "")
        if end != ">":
            self._reader.text = end + self._reader.text
            return read + name
        index = yield from self._begin(name)
        before = "{"
        while True:
            other, tag = yield from self._reader.until(_PARAMETER, _FUNCTION_END, _CALL_END)
            if other.strip():
                yield Content(other.strip("\n"))
            if not tag:
                return None
            if tag != _PARAMETER:
                break
            key, end = yield from self._reader.until(">")
            yield Arguments(index, f"{before}{json.dumps(key, ensure_ascii=False)}: ")
            before = ", "
            if not (end and (yield from self._value(index, types_of(key, self._schemas.get(name, {}))))):
                return None
        if tag == _FUNCTION_END:
            yield from self._reader.accept(_CALL_END)
        yield Arguments(index, "{}" if before == "{" else "}")
        yield CallEnded(index)
        return None

    def _value(self, index: int, types: set[str]) -> Parsing[bool]:
        """A parameter's value; returns whether it has come to its end."""
        yield from self._reader.skip_line()
        if types <= {"string"}:
            yield Arguments(index, '"')
            _, end = yield from self._reader.pass_on(
                lambda text: Arguments(index, _quoted(text)), *_VALUE_ENDS, trim=False
            )
            if end:
                yield Arguments(index, '"')
        else:
            text, end = yield from self._reader.until(*_VALUE_ENDS)
            yield Arguments(index, typed(text, types))
        if end not in _VALUE_ENDS[:2]:
            self._reader.text = end.lstrip("\n") + self._reader.text
        return bool(end)

    def _json_call(self) -> Parsing[str | None]:
        """A call; returns what was read if it is none."""
        read = yield from self._reader.accept("{")
        if not read:
            return ""
        while True:
            end = self._reader.text.find(_CALL_END)
            head = _JSON_HEAD.match(self._reader.text, 0, len(self._reader.text) if end < 0 else end)
            if head or end >= 0 or self._reader.ended:
                break
            yield None
        if head is None:
            return (yield from self._whole_json_call(read))
        self._reader.text = self._reader.text[head.end() :]
        index = yield from self._begin(head[1])
        if (yield from self._object(index)):
            yield from self._reader.accept("}")
            yield from self._reader.accept(_CALL_END)
            yield CallEnded(index)
        return None

    def _whole_json_call(self, read: str) -> Parsing[str | None]:
        """A call whose keys stand in another order, or whose arguments are JSON within a string."""
        text, end = yield from self._reader.until(_CALL_END)
        try:
            call = json.loads("{" + text)
            arguments = call.get("arguments", {})
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        except (ValueError, RecursionError):
            call = arguments = None
        if not (isinstance(arguments, dict) and isinstance(call.get("name"), str)):
            return read + text + end
        index = yield from self._begin(call["name"])
        yield Arguments(index, json.dumps(arguments, ensure_ascii=False))
        yield CallEnded(index)
        return None

    def _object(self, index: int) -> Parsing[bool]:
        """The JSON object that the text goes on with, as it is written; returns whether it has come to its end."""
        depth, quoted, escaped = 0, False, False
        while True:
            text, self._reader.text = self._reader.text, ""
            for i, character in enumerate(text, 1):
                if escaped:
                    escaped = False
                elif quoted:
                    quoted, escaped = character != '"', character == "\\"
                elif character == '"':
                    quoted = True
                else:
                    depth += (character in "{[") - (character in "}]")
                    if not depth:
                        self._reader.text = text[i:]
                        yield Arguments(index, text[:i])
                        return True
            if text:
                yield Arguments(index, text)
            if self._reader.ended:
                return False
            yield None

    def _begin(self, name: str) -> Parsing[int]:
        index = self._count
        self._count += 1
        yield CallBegun(index, f"call_{uuid.uuid4().hex[:24]}", name)
        return index


def _quoted(text: str) -> str:
    """A piece of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
