"""Plain text as the JSON value that a tool's schema asks for."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Set
from decimal import Decimal
from typing import NoReturn

from trigraph.runtime.text.json_text import JsonText
from trigraph.runtime.text.lexemes import SPACES

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_BOUNDED = re.compile(r"[^eE]{1,400}([eE][+-]?[0-9]{1,3})?")
# Templates write Python's spelling of these into the history.
_BOOLEANS = {"true", "True", "false", "False"}
_NULLS = {"null", "None"}
_LONGEST_PYTHON = 1 << 16


class Value:
    """A value whose text comes in pieces, up to a tag. Only of a string anything is certain before the end."""

    def __init__(self, types: Set[str], space: str, beginning: str) -> None:
        """`space` stands between the tag that opens it and the text, whose `beginning` is known."""
        self._types = types
        self._structured = beginning[:1] in ("{", "[")
        self._streams = types <= {"string"} and not (self._structured and not types)
        self._json = JsonText()
        self._parts: list[str] = []  # what was not passed on
        self._quote = '"'
        # The line breaks beside tags are the tags'.
        self._line_break = next((line_break for line_break in ("\r\n", "\n") if space.startswith(line_break)), "")
        self._gap = [space[len(self._line_break) :]]  # white space that may stand before a tag
        self.inline = "\n" not in space
        """Whether it is still in the line of its tag."""

    @property
    def quoted(self) -> bool:
        """Whether it has come to a place within a string of JSON."""
        return self._json.quoted and not self._json.broken

    @property
    def broken(self) -> bool:
        """Whether it turns out to be no JSON."""
        return self._json.broken

    @property
    def length(self) -> tuple[int, list[str]]:
        """How far it has come, for `shorten`."""
        return len(self._parts), [*self._gap]

    def shorten(self, length: tuple[int, list[str]]) -> None:
        """Takes back what has come since it had this length."""
        del self._parts[length[0] :]
        self._gap = length[1]

    def push(self, text: str) -> str:
        """Takes more text, or white space; the JSON that is certain."""
        self.inline = self.inline and "\n" not in text
        if text.isspace() and not text.strip(SPACES) and (any(self._gap) or "\n" in text or "\r" in text):
            self._gap.append(text)
            return ""
        text = "".join(self._gap) + text
        self._gap = []
        if self._streams:
            before, self._quote = self._quote, ""
            return before + quoted(text)
        self._parts.append(text)
        if self._structured:
            self._json.push(text)
        return ""

    def end(self, *, required: bool = True) -> str:
        """The rest of the JSON; nothing at all of a value that is left out."""
        gap, line_break, indentation = "".join(self._gap).rpartition("\n")
        if not line_break or indentation.strip(" \t"):
            gap += line_break + indentation
        elif self._line_break == "\r\n":
            gap = gap.removesuffix("\r")
        if self._streams:
            return f'{self._quote}{quoted(gap)}"'
        text = "".join(self._parts) + gap
        empty = not (text.strip() or "string" in self._types)
        return "" if empty and not required else typed(text, self._types)

    def cut(self) -> str:
        """The rest of the JSON where the reply is cut: nothing is certain of a number or a word."""
        if self._streams:
            return self._quote
        return "".join(self._parts).lstrip() if self._structured else ""


def quoted(text: str) -> str:
    """A piece of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def typed(text: str, types: Set[str]) -> str:
    """The JSON of a value of one of these types: of the first in the order below that `text` can be, else a string.

    Where a string is allowed, only JSON, and Python's spelling of its words, is anything else.
    """
    bare = text.strip()
    if "null" in types and bare in _NULLS:
        return "null"
    if ("integer" in types and _INTEGER.fullmatch(bare)) or ("number" in types and _NUMBER.fullmatch(bare)):
        return bare
    exact = "string" in types
    if "boolean" in types and (bare if exact else bare.capitalize()) in _BOOLEANS:
        return bare.lower()
    if "integer" in types and not exact and (whole := _whole_number(bare)) is not None:
        return whole
    kind = {"{": "object", "[": "array"}.get(bare[:1])
    if kind is None or (types and kind not in types):
        return json.dumps(text, ensure_ascii=False)
    try:
        json.loads(bare, parse_constant=_refuse)
    except (ValueError, RecursionError):
        python = _python(bare) if types and not exact else None
        return json.dumps(text, ensure_ascii=False) if python is None else python
    return bare


def _whole_number(text: str) -> str | None:
    """An integer that is written as a number, like 140.0 or 1e3."""
    if not (_NUMBER.fullmatch(text) and _BOUNDED.fullmatch(text)):
        return None
    number = Decimal(text)
    return str(int(number)) if number == number.to_integral_value() else None


def _python(text: str) -> str | None:
    """The JSON of a list or an object that is written as Python writes it."""
    if len(text) > _LONGEST_PYTHON:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that are none
            as_json = json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
        as_json.encode()
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return as_json


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
