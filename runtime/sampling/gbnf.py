"""Reads GBNF, the grammars of llama.cpp.

    rule        ::= name "::=" choice             a name has letters, digits, - and _; a rule ends with its line,
    choice      ::= sequence ("|" sequence)*      unless the next one begins with |, or a group is open
    sequence    ::= (item repetition*)*
    item        ::= name | "text" | [a-z] | [^a-z] | . | <token> | <[id]> | "(" choice ")"
    repetition  ::= * | + | ? | {n} | {n,} | {n,m}

Escapes of texts and classes: \\n \\r \\t, \\xHH, \\uHHHH, \\UHHHHHHHH, and any sign of punctuation for itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from trigraph.models.errors import quote

_DEPTH = 100  # of groups
_MOST = 2000  # times that a repetition may ask for, as in llama.cpp
_NAME = re.compile(r"[\w-]+")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([nrt!-/:-@\[-`{-~]))")
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}
_TIMES = re.compile(r"\{\s*([0-9]{1,9})\s*(,?)\s*([0-9]{1,9})?\s*\}")
_SIGNS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_TOKEN = re.compile(r"<(?:\[[0-9]{1,9}\]|[^<>\[\]\s]+)>")


@dataclass(frozen=True)
class Text:
    """These characters."""

    text: str


@dataclass(frozen=True)
class Class:
    """One character of these ranges, or with `negated` one of no range."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False


@dataclass(frozen=True)
class Token:
    """One token of the vocabulary, as `<name>` or `<[id]>`."""

    token: str


@dataclass(frozen=True)
class Reference:
    """What another rule stands for."""

    name: str


@dataclass(frozen=True)
class Sequence:
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """One of them."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """At least `least` of `part`, one after the other, and at most `most` unless that is None."""

    part: Node
    least: int
    most: int | None


Node = Text | Class | Token | Reference | Sequence | Choice | Repeat
NOTHING = Sequence(())


def parse(text: str) -> dict[str, Node]:
    """The rules by name. Raises ValueError with line and column where the text is not GBNF, or a rule is missing."""
    return _Parser(text).rules()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.references: dict[str, int] = {}  # where each name stands first

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self.space(lines=True)
        while self.at < len(self.text):
            begin, name = self.at, self.name()
            self.space()
            if not self.accept("::="):
                self.fail(f"expected ::= after the rule's name {quote(name)}")
            if name in rules:
                self.fail(f"the rule {quote(name)} is there already", begin)
            self.space(lines=True)
            rules[name] = rule = self.choice(0)
            # A rule without a text has taken the next rule's name for its own.
            if rule == NOTHING or (isinstance(rule, Reference) and self.text.startswith("::=", self.at)):
                self.fail(f'the rule {name} is empty; write what it stands for, or "" for nothing', begin)
            if self.at < len(self.text) and self.text[self.at] not in "\r\n":
                self.fail(f"unexpected {quote(self.text[self.at])}")
            self.space(lines=True)
        for name, place in self.references.items():
            if name not in rules:
                self.fail(f"there is no rule {quote(name)}", place)
        if "root" not in rules:
            raise ValueError("it has no rule root, with which texts begin")
        return rules

    def choice(self, depth: int) -> Node:
        options = [self.sequence(depth)]
        while self.another(nested=depth > 0):
            self.space(lines=True)
            options.append(self.sequence(depth))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def another(self, *, nested: bool) -> bool:
        """Takes a |, which may begin the next line."""
        begin = self.at
        self.space(lines=True)
        if self.accept("|"):
            return True
        if not nested:
            self.at = begin
        return False

    def sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while (part := self.item(depth)) is not None:
            self.space(lines=depth > 0)
            while (times := self.times()) is not None:
                part = Repeat(part, *times)
                self.space(lines=depth > 0)
            parts.append(part)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def item(self, depth: int) -> Node | None:
        """The next item; None where the sequence ends."""
        begin = self.at
        character = self.text[begin : begin + 1]
        if character == '"':
            return self.quoted()
        if character == "[":
            return self.range()
        if self.accept("."):
            return Class((), negated=True)
        if self.accept("("):
            return self.group(begin, depth + 1)
        if character == "!":
            self.fail("a token that must not come (!<...>) is not supported")
        if character == "<":
            if (token := _TOKEN.match(self.text, begin)) is None:
                self.fail("a token is written <name> or <[id]>")
            self.at = token.end()
            return Token(token[0])
        if _NAME.match(self.text, begin) is None:
            return None
        name = self.name()
        self.references.setdefault(name, begin)
        return Reference(name)

    def group(self, begin: int, depth: int) -> Node:
        if depth > _DEPTH:
            self.fail(f"groups are nested more than {_DEPTH} deep", begin)
        self.space(lines=True)
        inner = self.choice(depth)
        self.space(lines=True)
        if not self.accept(")"):
            self.fail("this group has no end: a ) is missing", begin)
        return inner

    def quoted(self) -> Text:
        begin, characters = self.at, list[str]()
        self.at += 1
        while not self.accept('"'):
            characters.append(self.character(begin, "text"))
        return Text("".join(characters))

    def range(self) -> Class:
        begin = self.at
        self.at += 1
        negated, ranges = self.accept("^"), list[tuple[str, str]]()
        while not self.accept("]"):
            first = last = self.character(begin, "class")
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                last = self.character(begin, "class")
            if last < first:
                self.fail(f"the range {quote(f'{first}-{last}')} is empty", begin)
            ranges.append((first, last))
        if not ranges and not negated:
            self.fail("this class has no characters", begin)
        return Class(tuple(ranges), negated)

    def character(self, begin: int, kind: str) -> str:
        """The next character of a text or a class, escaped or not."""
        if self.at >= len(self.text):
            self.fail(f"this {kind} has no end", begin)
        if self.text[self.at] != "\\":
            self.at += 1
            return self.text[self.at - 1]
        if (match := _ESCAPE.match(self.text, self.at)) is None:
            self.fail(f"there is no escape {quote(self.text[self.at : self.at + 2])}")
        number = match[1] or match[2] or match[3]
        code = int(number, 16) if number else 0
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            self.fail(f"{match[0]} is no character of Unicode")
        self.at = match.end()
        return chr(code) if number else _NAMED.get(match[4], match[4])

    def times(self) -> tuple[int, int | None] | None:
        """How often the item before may come, where that is said."""
        for sign, times in _SIGNS.items():
            if self.accept(sign):
                return times
        if not self.text.startswith("{", self.at):
            return None
        if (match := _TIMES.match(self.text, self.at)) is None:
            self.fail("a repetition is written {2}, {2,} or {2,4}")
        least = int(match[1])
        most = least if not match[2] else None if match[3] is None else int(match[3])
        if (not match[2] and match[3]) or (most is not None and most < least):
            self.fail(f"the repetition {match[0]} has no sense")
        if max(least, most or 0) > _MOST:
            self.fail(f"the repetition {match[0]} asks for more than {_MOST:,}")
        self.at = match.end()
        return least, most

    def name(self) -> str:
        if (match := _NAME.match(self.text, self.at)) is None:
            self.fail(f"expected the name of a rule, not {quote(self.text[self.at])}")
        self.at = match.end()
        return match[0]

    def accept(self, sign: str) -> bool:
        if not self.text.startswith(sign, self.at):
            return False
        self.at += len(sign)
        return True

    def space(self, *, lines: bool = False) -> None:
        """Skips blanks and comments, and with `lines` ends of lines."""
        blank = _BLANK_LINES if lines else _BLANK
        match = blank.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def fail(self, reason: str, place: int | None = None) -> NoReturn:
        place = self.at if place is None else place
        before = self.text[:place]
        line, column = before.count("\n") + 1, place - before.rfind("\n")
        raise ValueError(f"line {line}, column {column}: {reason}")


_BLANK = re.compile(r"[ \t]*+(?:#[^\r\n]*+)?+")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]++|#[^\r\n]*+)*+")
