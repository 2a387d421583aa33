"""Docstrings and comments stand alone: none leans on the line above it for what it speaks of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEANING = re.compile(r"(?:Of|That|Those|The same|And of)\b(?! way\b)")
"""How a sentence begins whose subject stands in another one."""


def python_files() -> list[Path]:
    folders = ("models", "exporter", "custom_ops", "runtime")
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Strings that stand alone, with their lines: those of modules, classes, functions, attributes and constants."""
    if not re.search(rf'"""\s*{LEANING.pattern}', source):  # most files, which need not be parsed
        return
    for node in ast.walk(ast.parse(source)):
        for statement in getattr(node, "body", ()) if isinstance(getattr(node, "body", None), list) else ():
            value = getattr(statement, "value", None) if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value.strip()


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments of C++ that have lines of their own, each as a whole."""
    begun = False
    for number, line in enumerate(source.splitlines(), 1):
        match = re.match(r"\s*// ?(.*)", line)
        if match and not begun:
            yield number, match[1]
        begun = match is not None


def test_docstrings_name_their_subject() -> None:
    leaning = [
        f"{file.relative_to(ROOT)}:{line}: {text[:60]}"
        for file in python_files()
        for line, text in docstrings(file.read_text(encoding="utf-8"))
        if LEANING.match(text)
    ]
    assert not leaning, "\n".join(leaning)


def test_comments_of_cpp_name_their_subject() -> None:
    kinds = ("*.cc", "*.h", "*.cu", "*.cuh")
    leaning = [
        f"{file.relative_to(ROOT)}:{line}: {text[:60]}"
        for kind in kinds
        for file in sorted((ROOT / "custom_ops").rglob(kind))
        for line, text in comments(file.read_text(encoding="utf-8"))
        if LEANING.match(text)
    ]
    assert not leaning, "\n".join(leaning)


def test_what_leans() -> None:
    python = '"""Modules."""\nX = 1\n"""Of a thing."""\n\n\nclass A:\n    """Those of B."""\n'
    assert [(line, bool(LEANING.match(text))) for line, text in docstrings(python)] == [
        (1, False),
        (3, True),
        (7, True),
    ]
    assert [line for line, text in comments("// A\n// Of b\nint x;  // of y\n  // Of z\n") if LEANING.match(text)] == [
        4
    ]
