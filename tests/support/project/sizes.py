"""Lengths of files and of functions."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.project.statements import statements

_INDENTED = re.compile(r"( *)([^\s].*)")
_STATEMENT = re.compile(r"(if|for|while|switch|do|(export )?class)\b")


def long_functions(path: Path, limit: int) -> Iterator[str]:
    """A sentence for each function of a Python, C++ or JavaScript file that has more than `limit` lines in all."""
    spans = _python_functions(path) if path.suffix == ".py" else _cpp_blocks(path)
    for name, first, last in spans:
        if last - first + 1 > limit:
            yield f"{path}:{first}: {name} has {last - first + 1} lines"


def _python_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    for node in statements(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, node.end_lineno or node.lineno


def _cpp_blocks(path: Path) -> Iterator[tuple[str, int, int]]:
    """What a formatted file closes by a lone brace: functions, and methods, whose lines are indented by two."""
    opened: dict[int, tuple[str, int]] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = _INDENTED.fullmatch(line)
        if found is None or line.startswith("#"):
            continue
        indent, text = len(found[1]), found[2]
        if text == "}" and indent in opened and indent <= 2:
            if not _STATEMENT.match(opened[indent][0]):
                yield *opened[indent], number
        elif not text.startswith(("}", ")", "public:", "private:", "//")):
            opened[indent] = (text, number)
