"""Statements of Python files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_PARTS = ("body", "orelse", "finalbody", "handlers", "cases")


def statements(path: Path) -> Iterator[ast.AST]:
    """All of a file, however deep, with what they are parts of; without expressions, which most of a tree is."""
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        yield node
        for part in _PARTS:
            waiting += getattr(node, part, ())
