"""Tool calls as JSON between tags, as Qwen3 and others of the Hermes family write them."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from typing import Any

from trigraph.runtime.text.json_text import JsonText, whole_characters
from trigraph.runtime.text.lexemes import CALL, CALL_END, END, Lexeme, Lexemes, Parsing
from trigraph.runtime.text.reply import Arguments, CallBegun, CallEnded

_HEAD = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"arguments"\s*:\s*(?=\{)')
_LONGEST_HEAD = 1024


class JsonCalls:
    """Reads calls of the functions in `schemas`."""

    def __init__(self, lexemes: Lexemes, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self.count = 0
        """How many calls have begun."""
        self._lexemes = lexemes
        self._names = frozenset(schemas)

    def opens(self, lexeme: Lexeme, fresh: bool) -> Parsing[str]:
        """Whether `<tool_call>` opens a "call", was "cut" where it may do so, or is "text".

        `fresh`: what is before it counts as the beginning of a line.
        """
        read: list[Lexeme] = []
        after = yield from self._lexemes.solid(read)
        self._lexemes.back(*read)
        if after.kind == END and self._lexemes.ended == "cut":
            return "cut"
        return "call" if after.text.startswith("{") and (fresh or lexeme.first or after.first) else "text"

    def read(self, lexeme: Lexeme) -> Parsing[str | None]:
        """A call that `lexeme` opens; returns its text where it is none, or its function is not declared."""
        opening = lexeme.text + (yield from self._lexemes.spaces())
        read, head, found = list[Lexeme](), "", None
        while not found and len(head) < _LONGEST_HEAD:
            read.append((yield from self._lexemes.next()))
            if read[-1].kind in (END, CALL, CALL_END):
                break
            head += read[-1].text
            found = _HEAD.match(head)
        if not found or found[1] not in self._names:
            self._lexemes.back(*read)
            text = yield from self._whole()
            return opening + text if text else text
        self._lexemes.split_back(read[-1], len(read[-1].text) - (len(head) - found.end()))
        index = yield from self._begin(found[1])
        if (yield from self._object(index)):
            yield CallEnded(index)
            yield from self._rest()
        return None

    def _object(self, index: int) -> Parsing[bool]:
        """The arguments, as they are written; returns whether they are whole."""
        written = JsonText()
        while not self._ends(lexeme := (yield from self._lexemes.next()), written):
            end = written.push(lexeme.text)
            yield Arguments(index, lexeme.text[:end] if end >= 0 else lexeme.text)
            if end >= 0:
                self._lexemes.split_back(lexeme, end)
                return True
        self._lexemes.back(lexeme)
        missing = self._missing(lexeme, written)
        if missing is not None:
            yield Arguments(index, missing)
        return missing is not None

    def _whole(self) -> Parsing[str | None]:
        """A call whose keys stand in another order, or whose arguments are JSON within a string.

        Returns its text where it is none, and nothing of one that a limit has cut.
        """
        written, parts = JsonText(), list[str]()
        while not self._ends(lexeme := (yield from self._lexemes.next()), written):
            end = written.push(lexeme.text)
            parts.append(lexeme.text[:end] if end >= 0 else lexeme.text)
            if end >= 0:
                self._lexemes.split_back(lexeme, end)
                break
        else:
            self._lexemes.back(lexeme)
            if lexeme.kind == END and self._lexemes.ended == "cut":
                self._lexemes.dropped = True
                return ""
        text = "".join(parts)
        try:
            call = json.loads(whole_characters(text + (self._missing(lexeme, written) or "")))
            name, arguments = call.get("name"), call.get("arguments", {})
            arguments = json.loads(whole_characters(arguments)) if isinstance(arguments, str) else arguments
        except (ValueError, RecursionError, AttributeError):
            return text
        if not (isinstance(arguments, dict) and isinstance(name, str) and name in self._names):
            return text
        index = yield from self._begin(name)
        yield Arguments(index, json.dumps(arguments, ensure_ascii=False))
        yield CallEnded(index)
        yield from self._closing_tag()
        return None

    def _ends(self, lexeme: Lexeme, written: JsonText) -> bool:
        """Whether a lexeme is no part of JSON that has come so far."""
        return lexeme.kind == END or (lexeme.kind in (CALL, CALL_END) and not written.quoted)

    def _missing(self, lexeme: Lexeme, written: JsonText) -> str | None:
        """The brackets that were forgotten before a lexeme; None where that does not make it whole."""
        return None if lexeme.kind == END and self._lexemes.ended != "whole" else written.missing()

    def _rest(self) -> Parsing[None]:
        """What follows the arguments in the object around them, and the closing tag."""
        read, around = list[Lexeme](), JsonText()
        around.push("{")
        lexeme = yield from self._lexemes.solid(read)
        if lexeme.text[:1] not in ("}", ","):
            self._lexemes.back(*read)
        else:
            end = -1
            while end < 0 and not self._ends(lexeme, around):
                end = around.push(lexeme.text)
                if end >= 0:
                    self._lexemes.split_back(lexeme, end)
                else:
                    lexeme = yield from self._lexemes.next()
            if end < 0:
                self._lexemes.back(lexeme)
        yield from self._closing_tag()

    def _closing_tag(self) -> Parsing[None]:
        read: list[Lexeme] = []
        if (yield from self._lexemes.solid(read)).kind != CALL_END:
            self._lexemes.back(*read)

    def _begin(self, name: str) -> Parsing[int]:
        index = self.count
        self.count += 1
        yield CallBegun(index, f"call_{uuid.uuid4().hex[:24]}", name)
        return index
