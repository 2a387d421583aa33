"""Tool calls between XML-like tags, as Qwen3.5 and Qwen3-Coder write them."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trigraph.runtime.text.argument_values import Value
from trigraph.runtime.text.lexemes import (
    CALL,
    CALL_END,
    END,
    FUNCTION,
    FUNCTION_END,
    PARAMETER,
    PARAMETER_END,
    Lexeme,
    Lexemes,
    Parsing,
)
from trigraph.runtime.text.reply import Arguments, CallBegun, CallEnded
from trigraph.runtime.text.tool_arguments import Arguments as Declared
from trigraph.runtime.text.tool_arguments import types_of

_NAME = re.compile(r"""\s*(["']?)(.*?)\1(?:\s+[\w:-]+\s*=.*)?\s*""")
# What must follow a closing tag, or another call, for the tag to end a value.
_ENDS_BEFORE: Mapping[str, tuple[str, ...]] = {
    PARAMETER_END: (PARAMETER, FUNCTION_END, CALL_END, END),
    FUNCTION_END: (CALL_END, END),
    CALL_END: (END,),
}


@dataclass
class _Call:
    """A call in the making."""

    index: int
    parameters: Mapping[str, Any]
    declared: Declared
    given: set[str] = field(default_factory=set)
    written: bool = False
    """Whether any of its arguments has been written."""

    def head(self, key: str) -> str:
        """What stands before the value of an argument in JSON."""
        before, self.written = ", " if self.written else "{", True
        return f"{before}{json.dumps(key, ensure_ascii=False)}: "


class XmlCalls:
    """Reads calls of the functions in `schemas`, which has the JSON schema of each one's arguments by name."""

    def __init__(self, lexemes: Lexemes, schemas: Mapping[str, Mapping[str, Any]], *, closed: bool) -> None:
        """`closed`: a grammar has written them, and no closing tag is missing."""
        self.count = 0
        """How many calls have begun."""
        self._lexemes = lexemes
        self._schemas = schemas
        self._declared = {name: Declared.of(parameters) for name, parameters in schemas.items()}
        self._ends_before = {PARAMETER_END: (PARAMETER, FUNCTION_END, END)} if closed else _ENDS_BEFORE
        self._closed = closed
        self._heeds_json = True
        self._cut = False  # whether the reply has ended within a value
        self._seen = 0  # up to where `_proper` is known
        self._proper = dict[str, int]()  # where a parameter begins last behind a closing tag

    def opens(self, lexeme: Lexeme, fresh: bool) -> Parsing[str]:
        """Whether `<tool_call>` or `<function=` opens a "call", was "cut" where it may do so, or is "text".

        `fresh`: what is before it counts as the beginning of a line.
        """
        read: list[Lexeme] = []
        function = (yield from self._lexemes.solid(read)) if lexeme.kind == CALL else lexeme
        opened = "text"
        if function.kind == END and self._lexemes.ended == "cut":
            opened = "cut"
        elif function.kind == FUNCTION and (fresh or lexeme.first or function.first):
            after = yield from self._lexemes.solid(read)
            opened = "call" if after.kind in (PARAMETER, FUNCTION_END, CALL_END, END) else "text"
        self._lexemes.back(*read)
        return opened

    def read(self, lexeme: Lexeme) -> Parsing[str | None]:
        """A call that `lexeme` opens; returns its text where its function is not declared."""
        opening = [lexeme]
        function = (yield from self._lexemes.solid(opening)) if lexeme.kind == CALL else lexeme
        name = _named(function.name, self._schemas)
        if name in self._schemas:
            index = self.count
            self.count += 1
            yield CallBegun(index, f"call_{uuid.uuid4().hex[:24]}", name)
            yield from self._body(_Call(index, self._schemas[name], self._declared[name]))
            return None
        with self._lexemes.recorded() as text:
            yield from _silent(self._body(_Call(0, {}, Declared())))
        return "".join([lexeme.text for lexeme in opening] + text)

    def _body(self, call: _Call) -> Parsing[None]:
        while True:
            read: list[Lexeme] = []
            lexeme = yield from self._lexemes.solid(read)
            if lexeme.kind != PARAMETER:
                break
            key = _named(lexeme.name, call.declared.schemas)
            if key in call.given:
                yield from _silent(self._value(replace(call), key))
            else:
                call.given.add(key)
                yield from self._value(call, key)
        if self._cut or (lexeme.kind == END and self._lexemes.ended == "cut"):
            if not call.written:
                yield Arguments(call.index, "{")
            return
        yield Arguments(call.index, "}" if call.written else "{}")
        yield CallEnded(call.index)
        if lexeme.kind == FUNCTION_END:
            read = []
            lexeme = yield from self._lexemes.solid(read)
        if lexeme.kind != CALL_END:
            self._lexemes.back(*read)

    def _value(self, call: _Call, key: str) -> Parsing[None]:
        """A parameter's value, up to its closing tag, or to the next structure where that is missing."""
        space = yield from self._lexemes.spaces()
        beginning = yield from self._lexemes.next()
        self._lexemes.back(beginning)
        value = Value(types_of(call.declared.schemas.get(key), call.parameters), space, beginning.text)
        head: str | None = None
        # A string of JSON may have tags in it. If it turns out to be none, the first of them ends the value.
        before, after = value.length, list[Lexeme]()
        while (lexeme := (yield from self._lexemes.next())).kind != END and not (after and value.broken):
            if (yield from self._ends(lexeme, call, inline=value.inline)):
                if not (value.quoted and self._heeds_json):
                    break
                before = before if after else value.length
                after.append(lexeme)
            elif after:
                after.append(lexeme)
            if certain := value.push(lexeme.text):
                head = call.head(key) if head is None else ""
                yield Arguments(call.index, head + certain)
        if after and (value.broken or (lexeme.kind == END and self._lexemes.ended != "cut")):
            self._heeds_json = False
            self._lexemes.back(*after, lexeme)
            lexeme = yield from self._lexemes.next()
            value.shorten(before)
        self._cut = self._cut or (lexeme.kind == END and self._lexemes.ended != "whole")
        last = value.cut() if self._cut else value.end(required=key in call.declared.required)
        if last:
            yield Arguments(call.index, (call.head(key) if head is None else "") + last)
        if lexeme.kind != PARAMETER_END:
            self._lexemes.back(lexeme)

    def _ends(self, lexeme: Lexeme, call: _Call, *, inline: bool) -> Parsing[bool]:
        """Whether a tag ends a value. `inline`: the value's line is that of its opening tag."""
        if lexeme.kind == PARAMETER:
            return (lexeme.first or inline) and not self._closed and (yield from self._ends_unclosed(lexeme, call))
        if lexeme.kind not in self._ends_before:
            return False
        read: list[Lexeme] = []
        after = yield from self._lexemes.solid(read)
        cut = after.kind == END and self._lexemes.ended == "cut"
        ends = after.kind in self._ends_before[lexeme.kind]
        if after.kind == CALL:
            after = yield from self._lexemes.solid(read)
        ends = ends or (self._is_declared(after) and not self._closed)
        self._lexemes.back(*read)
        self._cut = self._cut or (cut and lexeme.kind != PARAMETER_END)  # it may have been text
        return ends

    def _ends_unclosed(self, lexeme: Lexeme, call: _Call) -> Parsing[bool]:
        """Whether `<parameter=` ends a value that has no closing tag: one that is declared, and given nowhere else."""
        key = _named(lexeme.name, call.declared.schemas)
        if key not in call.declared.schemas or key in call.given:
            return False
        if lexeme.place >= self._seen:
            yield from self._look_ahead(call)
        return self._proper.get(key, -1) < lexeme.place

    def _is_declared(self, lexeme: Lexeme) -> bool:
        """Whether a lexeme opens a function that may be called."""
        return lexeme.kind == FUNCTION and _named(lexeme.name, self._schemas) in self._schemas

    def _look_ahead(self, call: _Call) -> Parsing[None]:
        """Finds the parameters that are given behind closing tags up to the end of the call."""
        read, last, closing = list[Lexeme](), "", False
        self._proper = {}
        while (lexeme := (yield from self._lexemes.solid(read))).kind != END:
            if lexeme.kind == PARAMETER and last == PARAMETER_END:
                self._proper[_named(lexeme.name, call.declared.schemas)] = lexeme.place
            if lexeme.kind in (FUNCTION_END, CALL_END) and lexeme.kind in _ENDS_BEFORE.get(last, ()):
                break
            if closing and self._is_declared(lexeme):
                break
            closing = lexeme.kind in _ENDS_BEFORE or (closing and lexeme.kind == CALL)
            last = lexeme.kind
        self._seen = lexeme.place + 1
        self._lexemes.back(*read)


def _named(written: str, declared: Container[str]) -> str:
    """The name that a tag gives: all of it if that is declared, else without quotes and attributes."""
    if written in declared:
        return written
    match = _NAME.fullmatch(written)
    return match[2] if match else written


def _silent(parsing: Parsing[None]) -> Parsing[None]:
    """Parses without giving events."""
    for event in parsing:
        if event is None:
            yield None
