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

The rules, with cases, stand in docs/reference/tool-calls.md. The methods are the grammar of a reply: each is a
generator of events, in the order of the text, which yields None where it needs more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trigraph.runtime.text.json_calls import JsonCalls
from trigraph.runtime.text.lexemes import (
    CALL,
    CALL_END,
    END,
    FENCE,
    FUNCTION,
    FUNCTION_END,
    SPACE,
    TAGS,
    THINK,
    THINK_END,
    Ending,
    Lexeme,
    Lexemes,
    Parsing,
)
from trigraph.runtime.text.passage import Passage, end_of
from trigraph.runtime.text.reply import Arguments, Content, Event, OfCall, Reasoning
from trigraph.runtime.text.tool_arguments import parameters_of
from trigraph.runtime.text.xml_calls import XmlCalls


@dataclass(frozen=True)
class ReplyFormat:
    """How replies of a model are written: whether with thoughts, and the family of tool calls, "xml" or "json"."""

    thoughts: bool = False
    calls: str | None = None

    @classmethod
    def of_template(cls, source: str) -> ReplyFormat:
        """The format that a chat template (Jinja text) tells the model to keep to."""
        calls = None
        if CALL in source:
            calls = "xml" if FUNCTION in source else "json" if "arguments" in source else None
        return cls(THINK_END in source, calls)

    def thinks(self, prompt: str) -> bool:
        """Whether a rendered prompt opens a thought, so that the reply begins within it."""
        return self.thoughts and prompt.rstrip().endswith(THINK)


class ReplyParser:
    """Makes events of the text of one reply."""

    def __init__(
        self,
        format: ReplyFormat = ReplyFormat(),
        tools: Iterable[Mapping[str, Any]] = (),
        *,
        thinking: bool = False,
        closed: bool = False,
        fences: bool = True,
    ) -> None:
        """`thinking`: the prompt has opened the thought. Without tools there are no calls.

        `closed`: a grammar holds the calls, and none of their closing tags is missing. `fences`: whether calls in
        blocks of code are text.

        Raises TrigraphError for a tool without a name.
        """
        self._format, self._tools = format, [*tools]
        schemas = parameters_of(self._tools)
        tags = TAGS.get(format.calls or "", ()) if schemas else ()
        self._thoughts = format.thoughts
        self._lexemes = Lexemes(
            (THINK, THINK_END, *tags) if format.thoughts or thinking else tags, fences=fences and bool(tags)
        )
        self._calls: XmlCalls | JsonCalls | None = None
        if tags:
            xml = format.calls == "xml"
            self._calls = XmlCalls(self._lexemes, schemas, closed=closed) if xml else JsonCalls(self._lexemes, schemas)
        self.places: list[int] = []
        """Where each call begins that stands outside of thoughts and blocks of code."""
        self._parsing = self._reply(thinking)

    def push(self, text: str) -> list[Event]:
        """The events that more text completes."""
        self._lexemes.push(text)
        return self._events()

    def finish(self, ended: Ending = "whole") -> list[Event]:
        """The last events, when the reply has ended.

        A call that a limit has cut, or a stop string within a value, has no CallEnded.
        """
        self._lexemes.finish(ended)
        return self._events()

    def _events(self) -> list[Event]:
        """The next events; those that continue each other are joined."""
        joined: list[list[Any]] = []
        while (event := next(self._parsing, None)) is not None:
            kind = (type(event), event.index) if isinstance(event, Arguments) else (type(event),)
            if isinstance(event, Reasoning | Content | Arguments) and joined and joined[-1][0] == kind:
                joined[-1][1].append(event)
            else:
                joined.append([kind, [event]])
        return [_joined(events) for _, events in joined]

    def _reply(self, thinking: bool) -> Parsing[None]:
        space = yield from self._lexemes.spaces()
        lexeme = yield from self._lexemes.next()
        if self._thoughts and lexeme.kind == THINK:
            thinking, space = True, (yield from self._lexemes.spaces()).lstrip("\r\n")
        else:
            self._lexemes.back(lexeme)
        passage = Passage(Reasoning if thinking else Content)
        yield from passage.add(space)
        if thinking:
            ended = yield from self._quoted(passage, lambda lexeme: lexeme.kind == THINK_END)
            passage = Passage(Content)
            if ended:
                yield from self._begin_line(passage)
        yield from self._content(passage)

    def _content(self, passage: Passage) -> Parsing[None]:
        fresh = True  # whether a line begins here, or a call has just ended
        while (lexeme := (yield from self._lexemes.next())).kind != END:
            opened = yield from self._opens(lexeme, fresh)
            fresh = fresh and lexeme.kind == SPACE
            if opened == "cut":
                return
            if opened == "call":
                fresh = yield from self._call(lexeme, passage)
                continue
            yield from passage.add(lexeme.text)
            if lexeme.kind == FENCE:
                yield from self._quoted(passage, end_of(lexeme))
        yield from self._end(passage)

    def _end(self, passage: Passage) -> Parsing[None]:
        """The line breaks at the end of the reply, unless there was a tag behind them."""
        if not self._lexemes.dropped:
            yield from passage.add_gap()

    def _opens(self, lexeme: Lexeme, fresh: bool = False) -> Parsing[str]:
        """Whether a lexeme opens a "call", was "cut" where it may do so, or is "text"."""
        if self._calls is None or lexeme.kind not in (CALL, FUNCTION):
            return "text"
        return (yield from self._calls.opens(lexeme, fresh))

    def _call(self, lexeme: Lexeme, passage: Passage) -> Parsing[bool]:
        """What looks like a call; returns whether it is one."""
        assert self._calls is not None
        text = yield from self._calls.read(lexeme)
        if text is not None:
            yield from passage.add(text)
            return False
        self.places.append(lexeme.place)
        passage.drop_gap()
        yield from self._begin_line(passage)
        return True

    def _begin_line(self, passage: Passage) -> Parsing[None]:
        """Leaves out line breaks after a thought or a call."""
        space = yield from self._lexemes.spaces()
        lexeme = yield from self._lexemes.next()
        self._lexemes.back(lexeme)
        if lexeme.kind != END:
            yield from passage.add(space.lstrip("\r\n"))

    def _quoted(self, passage: Passage, ends: Callable[[Lexeme], bool]) -> Parsing[bool]:
        """A thought, or a block of code in the content, up to what ends it; returns whether that has come.

        A call in it is text, unless the block never ends, and the reply ends with the call.
        """
        while not ends(lexeme := (yield from self._lexemes.next())):
            opened = "cut" if lexeme.kind == END else (yield from self._opens(lexeme))
            if opened == "cut":
                if lexeme.kind == END:
                    yield from self._end(passage)
                return False
            text = [lexeme.text]
            if opened == "call":
                while not ends(lexeme := (yield from self._lexemes.next())) and lexeme.kind != END:
                    text.append(lexeme.text)
                self._lexemes.back(lexeme)
                if lexeme.kind == END:
                    yield from self._last_calls(passage, "".join(text))
                    return False
            yield from passage.add("".join(text))
        if lexeme.kind == FENCE:
            yield from passage.add(lexeme.text)
        return True

    def _last_calls(self, passage: Passage, text: str) -> Parsing[None]:
        """The last text of a reply that has ended within a block: calls are those that it ends with."""
        calls: list[OfCall] = []
        if self._lexemes.ended != "cut" and text.rstrip().endswith((CALL_END, FUNCTION_END)):
            inner = ReplyParser(ReplyFormat(calls=self._format.calls), self._tools, fences=False)
            for event in inner.push(text) + inner.finish():
                if isinstance(event, Reasoning | Content):
                    calls.clear()
                else:
                    calls.append(event)
        if not calls:
            yield from passage.add(text)
            yield from self._end(passage)
            return
        first = calls[0].index
        yield from passage.add(text[: inner.places[first]])
        passage.drop_gap()
        assert self._calls is not None
        for event in calls:
            yield replace(event, index=self._calls.count + event.index - first)
        self._calls.count += len(inner.places) - first


def _joined(events: list[Event]) -> Event:
    """One event for several that continue each other."""
    match events[0]:
        case Reasoning() | Content() | Arguments() as event if len(events) > 1:
            return replace(event, text="".join(event.text for event in events))  # type: ignore[union-attr]
    return events[0]
