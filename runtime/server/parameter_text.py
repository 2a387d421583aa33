"""The raw text of a call's parameter between XML tags, as a terminal of a Lark grammar, from the parameter's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trigraph.models.errors import quote
from trigraph.runtime.sampling.guidance import library
from trigraph.runtime.sampling.json_schema import Note
from trigraph.runtime.text.tool_arguments import resolved, types_of

ANY = "/(?s:.*)/"
# What follows a value: its closing tag, and what shows that it is one.
NEXT, LAST = '"\\n</parameter>\\n<parameter="', '"\\n</parameter>\\n</function>"'
# What a value cannot have in it: there the reply's parser sees its end.
_WHOLE = r"~/(?s:.*)<\/parameter>[ \t\r\n]*<(parameter=|\/function>)(?s:.*)/"
_NEVER = "(/a/ & /b/)"
_INTEGER = "-?(0|[1-9][0-9]*)"
_NUMBER = rf"{_INTEGER}(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_SCALARS = {
    "null": '"null"',
    "boolean": '("true" | "false")',
    "integer": f"/{_INTEGER}/",
    "number": f"/{_NUMBER}/",
    "string": ANY,
}
# Texts that the parser takes for a value of a type beside a string.
_LOOKS = {
    "null": r"\s*(null|None)\s*",
    "boolean": r"\s*(true|True|false|False)\s*",
    "integer": rf"\s*{_INTEGER}\s*",
    "number": rf"\s*{_NUMBER}\s*",
    "array": r"\s*\[(?s:.*)",
    "object": r"\s*\{(?s:.*)",
}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_MOST = 2000  # parts of a parameter's schema, followed through its references
MOST_IN_ALL = 100_000  # of all parameters of a request: a second
_DEPTH = 100  # of references
_LONGEST_PATTERN = 64 << 10
_LONGEST = 1 << 20  # characters of all that a tool's terminals are made of: four times what a form may have


class ParameterText:
    """Terminals for the parameters of one tool, whose schema `root` is what `json_schema.enforced` leaves of it."""

    def __init__(self, root: Mapping[str, Any], left: int) -> None:
        self.notes: list[Note] = []
        self.root = root
        self.left = left
        """Parts of schemas that may still be followed."""
        self._least = self._length = 0

    def terminal(self, name: str, schema: Any) -> str | None:
        """What is text up to its closing tag, without objects and arrays; None for a value that is JSON of `types_of`.

        Raises ValueError when the schema is too large.
        """
        types = types_of(schema, self.root)
        if types and "string" not in types:
            return None
        self._least = self.left - _MOST
        texts = self._values(schema, "string", name)
        looks = "".join(f" & ~/{_LOOKS[kind]}/" for kind in sorted(types & _LOOKS.keys()))
        options = [] if texts is None else [f"({texts}{looks} & {_WHOLE})"]
        for kind in sorted(types & _SCALARS.keys() - {"string"}):
            if (values := self._values(schema, kind, name)) is not None:
                options.append(values)
        return f"({' | '.join(options) or _NEVER})"

    def _values(self, schema: Any, kind: str, place: str, followed: tuple[str, ...] = ()) -> str | None:
        """The texts of the values of a type that a schema allows; None when there are none."""
        self.left -= 1
        if self.left < self._least:
            raise ValueError(f"the parameter {quote(place)} refers to more than {_MOST} schemas")
        if self.left < 0:
            raise ValueError(f"the parameters of all tools refer to more than {MOST_IN_ALL:,} schemas")
        if len(followed) > _DEPTH:
            raise ValueError(f"the references of the parameter {quote(place)} lead more than {_DEPTH} deep")
        allowed = self._allowed(schema, kind, place, followed)
        self._length += len(allowed or "")
        if self._length > _LONGEST:
            raise ValueError(f"the texts and patterns of its parameters have more than {_LONGEST:,} characters")
        return allowed

    def _allowed(self, schema: Any, kind: str, place: str, followed: tuple[str, ...]) -> str | None:
        if not isinstance(schema, Mapping):
            return None if schema is False else _SCALARS[kind]
        declared = schema.get("type")
        if declared is not None and kind not in ([declared] if isinstance(declared, str) else declared):
            return None
        parts: list[str | None] = []
        for key in ("enum", "const"):
            if key in schema:
                parts.append(_listed(schema[key] if key == "enum" else [schema[key]], kind))
        if kind == "string":
            parts += self._string(schema, place)
        elif kind in ("integer", "number") and any(key in schema for key in _BOUNDS):
            bounds = ", ".join(key for key in _BOUNDS if key in schema)
            self.notes.append(Note(f"/properties/{place}", bounds, "is not enforced beside strings"))
        parts += [self._values(part, kind, place, followed) for part in _list(schema.get("allOf"))]
        for key in ("anyOf", "oneOf"):
            if key in schema:
                found = [self._values(part, kind, place, followed) for part in _list(schema[key])]
                options = [option for option in dict.fromkeys(found) if option is not None]
                parts.append(_SCALARS[kind] if _SCALARS[kind] in options else _either(options))
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in followed:
            target = resolved(reference, self.root)
            parts.append(self._values(target, kind, place, (*followed, reference)))
        if None in parts:
            return None
        narrowed = [part for part in dict.fromkeys(parts) if part not in (None, _SCALARS[kind])]
        return " & ".join(map(str, narrowed)) or _SCALARS[kind]

    def _string(self, schema: Mapping[str, Any], place: str) -> list[str]:
        parts = []
        if isinstance(pattern := schema.get("pattern"), str):
            if len(pattern) > _LONGEST_PATTERN:
                raise ValueError(
                    f"a pattern of the parameter {quote(place)} has more than {_LONGEST_PATTERN:,} characters"
                )
            if (expression := searched(pattern)) is None:
                self.notes.append(Note(f"/properties/{place}", "pattern", "is not enforced"))
            else:
                parts.append(expression)
        least, most = schema.get("minLength"), schema.get("maxLength")
        if least is not None or most is not None:
            parts.append(f"/(?s:.{{{least or 0},{'' if most is None else most}}})/")
        return parts


def searched(pattern: str) -> str | None:
    """A terminal of the texts in which a JSON schema's `pattern` is found; None where it has anchors within."""
    options = []
    for branch in _branches(library().regex_to_lark(pattern, "dw")):
        begins, ends = branch.startswith("^"), branch.endswith("$") and not _escaped(branch, len(branch) - 1)
        middle = branch[begins : len(branch) - ends]
        if any(mark in "^$" and free for mark, free, _ in _marks(middle)):
            return None
        options.append(f"{'' if begins else '(?s:.*)'}({middle}){'' if ends else '(?s:.*)'}")
    return f"/{'|'.join(options)}/"


def _branches(pattern: str) -> list[str]:
    """The alternatives at the top of a pattern."""
    cuts = [i for i, (mark, free, depth) in enumerate(_marks(pattern)) if mark == "|" and free and not depth]
    return [pattern[i + 1 : j] for i, j in zip([-1, *cuts], [*cuts, len(pattern)], strict=True)]


def _marks(pattern: str) -> list[tuple[str, bool, int]]:
    """Each character, whether it is neither escaped nor in a class, and how many groups it stands in."""
    marks, depth, escaped, within = [], 0, False, False
    for character in pattern:
        free = not escaped and not within
        marks.append((character, free, depth))
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif within:
            within = character != "]"
        elif character == "[":
            within = True
        else:
            depth += (character == "(") - (character == ")")
    return marks


def _escaped(pattern: str, place: int) -> bool:
    return not _marks(pattern)[place][1]


def _listed(values: Any, kind: str) -> str | None:
    return _either([literal(_text(value)) for value in _list(values) if _kind(value) in _KINDS_OF[kind]])


_KINDS_OF = {kind: {kind} for kind in _SCALARS} | {"number": {"integer", "number"}}


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {str: "string", int: "integer", float: "number", type(None): "null"}
    return kinds.get(type(value), "other")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _either(options: Sequence[str]) -> str | None:
    return f"({' | '.join(options)})" if options else None


def literal(text: str) -> str:
    """The text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
