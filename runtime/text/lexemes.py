"""Text that comes in pieces as tags, white space, fences of code blocks and what stands between them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from trigraph.runtime.text.reply import Event

_T = TypeVar("_T")
Parsing: TypeAlias = Generator[Event | None, None, _T]
"""Parses a part of the text: yields events, and None where it needs more text."""
Ending: TypeAlias = Literal["whole", "stopped", "cut"]
"""How a reply has ended: by itself, by a stop string, or by a limit."""

THINK, THINK_END = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
TAGS = {
    "xml": (CALL, CALL_END, FUNCTION, FUNCTION_END, PARAMETER, PARAMETER_END),
    "json": (CALL, CALL_END),
}
"""The tags of a family of calls."""
TEXT, SPACE, FENCE, END = "text", "space", "fence", "end"
SPACES = " \t\r\n"
_LONGEST = 256  # characters of a name in a tag, and of the line that begins a code block
_NAME, _NAME_BEGUN = rf"[^<>\n]{{1,{_LONGEST}}}>", re.compile(rf"[^<>\n]{{0,{_LONGEST}}}")
_FENCE = rf"(?:^|(?<=\n))[ \t]*(?P<fence>(?:`{{3,}}|~{{3,}})[^`<\n]{{0,{_LONGEST}}})"
_FENCE_BEGUN = re.compile(rf"[ \t]*(?:`{{1,2}}|~{{1,2}}|(?:`{{3,}}|~{{3,}})[^`<\n]{{0,{_LONGEST - 1}}})")


@dataclass(frozen=True)
class Lexeme:
    """A part of the text."""

    kind: str
    """"text", "space", "fence", "end" or a tag; of one that names something, what stands before the name."""
    text: str
    place: int
    """Characters before it."""
    first: bool
    """Whether nothing but white space stands before it in its line."""

    @property
    def name(self) -> str:
        """What a tag names, and attributes behind that."""
        return self.text[len(self.kind) : -1]


class Lexemes:
    """The lexemes of a text, each as soon as it is certain what it is. The work is linear in the text's length."""

    def __init__(self, tags: Iterable[str], *, fences: bool) -> None:
        """`tags`: those that are told from text; after one that ends in "=" comes a name."""
        self.ended: Ending | None = None
        self.dropped = False
        """Whether a limit has cut a tag, which was left out."""
        self._tags = tuple(tags)
        self._fences = fences
        patterns = [re.escape(tag) + (_NAME if tag.endswith("=") else "") for tag in self._tags]
        self._pattern = re.compile("|".join([*patterns, *([_FENCE] if fences else [])]) or r"(?!)")
        self._tail = ""  # the beginning of a tag, perhaps
        self._place = 0
        self._blank = True  # whether the line so far is white space
        self._waiting: deque[Lexeme] = deque()
        self._record: list[str] | None = None

    def push(self, text: str) -> None:
        """Takes more text."""
        buffer, start = self._tail + text, 0
        for match in self._pattern.finditer(buffer):
            fence = self._fences and match["fence"]
            if fence and not self._is_fence(match, buffer, start):
                continue
            at = match.start("fence") if fence else match.start()
            self._split(buffer[start:at])
            kind = FENCE if fence else next(tag for tag in self._tags if match[0].startswith(tag))
            self._add(kind, buffer[at : match.end()])
            start = match.end()
        rest = buffer[start:]
        held = len(rest) if self.ended else self._held(rest)
        self._split(rest[:held])
        self._tail = rest[held:]

    def finish(self, ended: Ending) -> None:
        """No more text comes. Where a limit cut it, what may be the beginning of a tag is left out."""
        self.ended = ended
        if ended == "cut":
            self.dropped, self._tail = bool(self._tail), ""
        self.push("")

    def next(self) -> Parsing[Lexeme]:
        """The next one; at the end of the text one of the kind END."""
        while not self._waiting:
            if self.ended:
                return Lexeme(END, "", self._place, True)
            yield None
        lexeme = self._waiting.popleft()
        if self._record is not None:
            self._record.append(lexeme.text)
        return lexeme

    def back(self, *lexemes: Lexeme) -> None:
        """Puts back what was read last, in the order of the text."""
        lexemes = tuple(lexeme for lexeme in lexemes if lexeme.kind != END)
        self._waiting.extendleft(reversed(lexemes))
        if self._record is not None and lexemes:
            del self._record[-len(lexemes) :]

    def split_back(self, lexeme: Lexeme, length: int) -> None:
        """Puts back all but the first `length` characters of the text that was read last."""
        self.back(lexeme)
        self._waiting.popleft()
        rest = lexeme.text[length:]
        body = rest.lstrip(SPACES)
        for kind, text in ((TEXT, body), (SPACE, rest[: len(rest) - len(body)])):
            if text:
                at = lexeme.place + len(lexeme.text) - len(rest if kind == SPACE else body)
                self._waiting.appendleft(Lexeme(kind, text, at, False))
        if self._record is not None:
            self._record.append(lexeme.text[:length])

    def spaces(self) -> Parsing[str]:
        """Reads the white space that comes next."""
        spaces = []
        while (lexeme := (yield from self.next())).kind == SPACE:
            spaces.append(lexeme.text)
        self.back(lexeme)
        return "".join(spaces)

    def solid(self, read: list[Lexeme]) -> Parsing[Lexeme]:
        """The next one that is no white space; it and white space before it are added to `read`."""
        while True:
            read.append((yield from self.next()))
            if read[-1].kind != SPACE:
                return read[-1]

    @contextmanager
    def recorded(self) -> Generator[list[str]]:
        """The list that takes what is read meanwhile, and not put back."""
        record = list[str]()
        self._record = record
        yield record
        self._record = None

    def _is_fence(self, match: re.Match[str], buffer: str, start: int) -> bool:
        """Whether a match that looks like a fence is a whole one: more of its line may come."""
        if match.start() == start and not self._blank:
            return False
        end = match.end()
        whole = end < len(buffer) or self.ended is not None or len(match["fence"]) >= _LONGEST
        return whole and buffer[end : end + 1] != "`"

    def _held(self, rest: str) -> int:
        """Where at the end of a text that has no tag one may have begun."""
        places = [len(rest)]
        if (at := rest.rfind("<")) >= 0:
            begun = rest[at:]
            named = [len(tag) for tag in self._tags if tag.endswith("=") and begun.startswith(tag)]
            if any(tag.startswith(begun) for tag in self._tags) or any(
                _NAME_BEGUN.fullmatch(begun, length) for length in named
            ):
                places.append(at)
        line = rest.rfind("\n") + 1
        if self._fences and (line or self._blank):
            begun = rest[line:]
            if _FENCE_BEGUN.fullmatch(begun):
                places.append(len(rest) - len(begun.lstrip(" \t")))
        return min(places)

    def _split(self, text: str) -> None:
        """Adds text without tags, the white space around it apart."""
        body = text.strip(SPACES)
        before = len(text) - len(text.lstrip(SPACES)) if body else len(text)
        for kind, part in ((SPACE, text[:before]), (TEXT, body), (SPACE, text[before + len(body) :])):
            if part:
                self._add(kind, part)

    def _add(self, kind: str, text: str) -> None:
        self._waiting.append(Lexeme(kind, text, self._place, self._blank))
        self._place += len(text)
        self._blank = kind == SPACE and (self._blank or "\n" in text)
