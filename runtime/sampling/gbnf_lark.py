"""GBNF as llguidance's dialect of Lark.

llguidance reads a text as lexemes, each as long as it can be, and parses those. GBNF knows no lexemes. So whatever can
be a regular expression becomes one, whole: rules that do not refer to themselves, and those that do at their ends
(`ws ::= ([ \\n] ws)?` is `[ \\n]*`). What is left is a grammar over long lexemes, which meet at few places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from trigraph.runtime.sampling.gbnf import Choice, Class, Node, Reference, Repeat, Sequence, Text, Token, parse

_LONGEST = 4000  # characters of an expression: it stands wherever its rule is referred to
_DEEPEST = 60  # groups within groups; Rust's expressions take 250


def lark_of(text: str) -> str:
    """A grammar in GBNF in Lark. Raises ValueError, with line and column, where it is malformed."""
    return _Lowering(_used(parse(text))).grammar()


def _used(rules: Mapping[str, Node]) -> dict[str, Node]:
    """The rules that `root` refers to, each after those that it refers to unless these refer back to it."""
    used: dict[str, Node] = {}
    begun, waiting = {"root"}, [("root", _references(rules["root"]))]
    while waiting:
        name, references = waiting[-1]
        for other in references:
            if other not in begun:
                begun.add(other)
                waiting.append((other, _references(rules[other])))
                break
        else:
            used[name] = rules[name]
            waiting.pop()
    return used


def _references(node: Node) -> Iterator[str]:
    if isinstance(node, Reference):
        yield node.name
    for part in _parts(node):
        yield from _references(part)


def _parts(node: Node) -> tuple[Node, ...]:
    match node:
        case Sequence(parts) | Choice(parts):
            return parts
        case Repeat(part):
            return (part,)
    return ()


class _Expression(NamedTuple):
    """A regular expression that stands where one item may."""

    text: str
    nullable: bool = False
    """Whether the empty text matches."""
    depth: int = 0
    """How deep groups are within one another."""


_EMPTY = _Expression("", nullable=True)


class _Lowering:
    def __init__(self, rules: Mapping[str, Node]) -> None:
        self.names = {name: "start" if name == "root" else f"r{i}" for i, name in enumerate(rules)}
        self.regular: dict[str, _Expression] = {}
        """Expressions of rules, as far as they have one."""
        self.rules: list[str] = []
        self.terminals: dict[str, str] = {}
        """Names of terminals by their definitions."""
        for name, node in rules.items():
            expression = self.loop(name, node) if name in _references(node) else self.expression(node)
            if expression is not None:
                self.regular[name] = expression
            if name == "root" or expression is None:
                text = self.rule(node) if expression is None else self.lexeme(expression)
                self.rules.append(f"{self.names[name]}: {text}")

    def grammar(self) -> str:
        terminals = [f"{name}: {definition}" for definition, name in self.terminals.items()]
        return "\n".join(["%llguidance {}", *self.rules, *terminals]) + "\n"

    def expression(self, node: Node) -> _Expression | None:
        """The regular expression of what has one that is not too long."""
        match node:
            case Text() | Class():
                return _of_characters(node)
            case Reference(name):
                return self.regular.get(name)
            case Sequence(parts):
                return _sequence(map(self.expression, parts))
            case Choice(options):
                return _choice(map(self.expression, options))
            case Repeat(part, least, most) if (inner := self.expression(part)) is not None:
                return _grouped(inner, _times(least, most), nullable=not least)
        return None

    def loop(self, name: str, node: Node) -> _Expression | None:
        """The expression of a rule that refers to itself at its ends alone: of `x ::= a x | b`, it is `a*b`."""
        ways = [*self.ways(name, node)]
        again = _choice(before for before, loops in ways if loops)
        ends = _choice(before for before, loops in ways if not loops)
        if again is None or ends is None:
            return None
        return _sequence([_grouped(again, "*", nullable=True), ends])

    def ways(self, name: str, node: Node) -> Iterator[tuple[_Expression | None, bool]]:
        """Each way through a rule: what comes before its end, or before the rule begins again, and whether it does."""
        match node:
            case Reference(other) if other == name:
                yield _EMPTY, True
            case Choice(options):
                for option in options:
                    yield from self.ways(name, option)
            case Repeat(part, 0, 1):
                yield _EMPTY, False
                yield from self.ways(name, part)
            case Sequence(parts) if parts:
                before = self.expression(Sequence(parts[:-1]))
                for after, loops in self.ways(name, parts[-1]):
                    yield _sequence([before, after]), loops
            case _:
                yield self.expression(node), False

    def rule(self, node: Node) -> str:
        """The text of a rule, or of a part of one."""
        if (expression := self.expression(node)) is not None:
            return self.lexeme(expression)
        match node:
            case Text() | Class():
                return self.lexeme(_of_characters(node))
            case Token(token):
                return token
            case Reference(name):
                return self.names[name]
            case Sequence(parts):
                return " ".join(self.joined(parts))
            case Choice(options):
                return f"({' | '.join(map(self.rule, self.merged(options)))})"
            case Repeat(part, least, most):
                return f"({self.rule(part)}){_times(least, most)}"

    def joined(self, parts: Iterable[Node]) -> Iterator[str]:
        """The parts of a sequence; those with expressions that stand beside each other are one lexeme."""
        expression = _EMPTY
        for part in parts:
            if (longer := _sequence([expression, self.expression(part)])) is not None:
                expression = longer
                continue
            if expression.text:
                yield self.lexeme(expression)
            expression = self.expression(part) or _EMPTY
            if expression is _EMPTY:
                yield self.rule(part)
        if expression.text:
            yield self.lexeme(expression)

    def merged(self, options: Iterable[Node]) -> Iterator[Node]:
        """The options of a choice; those with expressions are one, unless that is too long."""
        parted: dict[bool, list[Node]] = {True: [], False: []}
        for option in options:
            parted[self.expression(option) is not None].append(option)
        regular = parted[True]
        if self.expression(joint := Choice(tuple(regular))) is None:
            yield from options
            return
        yield from parted[False]
        if regular:
            yield joint

    def lexeme(self, expression: _Expression) -> str:
        """A terminal. llguidance takes none that the empty text matches: that is said beside it."""
        if not expression.text:
            return '""'
        definition = f"/{expression.text}/{' & /(?s:.+)/' if expression.nullable else ''}"
        name = self.terminals.setdefault(definition, f"T{len(self.terminals)}")
        return f"{name}?" if expression.nullable else name


def _of_characters(node: Text | Class) -> _Expression:
    if isinstance(node, Text):
        return _Expression("".join(map(_escaped, node.text)), not node.text)
    listed = "".join(f"{_escaped(first)}-{_escaped(last)}" for first, last in node.ranges)
    return _Expression(f"[{'^' if node.negated else ''}{listed}]" if listed else "(?s:.)")


def _sequence(parts: Iterable[_Expression | None]) -> _Expression | None:
    expression = _EMPTY
    for part in parts:
        if part is None or len(expression.text) + len(part.text) > _LONGEST:
            return None
        expression = _Expression(
            expression.text + part.text, expression.nullable and part.nullable, max(expression.depth, part.depth)
        )
    return expression


def _choice(options: Iterable[_Expression | None]) -> _Expression | None:
    listed, length = list[_Expression](), 0
    for option in options:
        if option is None or length > _LONGEST:
            return None
        listed.append(option)
        length += len(option.text) + 1
    if len(listed) < 2:
        return listed[0] if listed else None
    text, depth = "|".join(option.text for option in listed), max(option.depth for option in listed)
    return _grouped(_Expression(text, any(option.nullable for option in listed), depth))


def _grouped(inner: _Expression, times: str = "", *, nullable: bool = False) -> _Expression | None:
    if inner.depth == _DEEPEST:
        return None
    return _Expression(f"(?:{inner.text}){times}", inner.nullable or nullable, inner.depth + 1)


def _times(least: int, most: int | None) -> str:
    if most is None:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return "?" if (least, most) == (0, 1) else f"{{{least},{most}}}"


def _escaped(character: str) -> str:
    """The character in an expression of Rust's."""
    plain = character.isalnum() and character.isascii()
    return character if plain else f"\\x{{{ord(character):x}}}"
