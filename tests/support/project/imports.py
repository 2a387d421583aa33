"""Who imports whom, and whether the order of rooms allows it.

A room is a folder in one of the top folders, or a file that lies in a top folder itself. What lies in a room is part
of it, unless the order names it.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

from support.project.statements import statements

PACKAGE = "trigraph"
OTHERS = "*"
Rooms = Mapping[str, Sequence[str]]
"""For each top folder its rooms, the lowest first; OTHERS stands for all that are not named. A top folder sees those
before it."""
Graph = Mapping[str, set[str]]


def import_graph(root: Path, rooms: Rooms) -> Graph:
    """For each file, relative to `root`, the files that it imports: anywhere, be it in a function or for types only."""
    files = {path.relative_to(root).as_posix() for top in rooms for path in (root / top).rglob("*.py")}
    return {file: set(_imported(root / file, files)) - {file} for file in sorted(files)}


def violations(graph: Graph, rooms: Rooms) -> Iterator[str]:
    """A sentence for each file without a room, each import that runs up, and a circle of files or of rooms."""
    floors = [f"{top}/{room}" for top, inside in rooms.items() for room in inside]
    for file in graph:
        if _floor(file, floors) is None:
            yield f"{file} is in no room: give {_room(file, floors)} its place in the order of {file.split('/')[0]}"
    for file, imported in graph.items():
        for other in sorted(imported):
            here, there = _floor(file, floors), _floor(other, floors)
            if here is not None and there is not None and there > here:
                yield f"{file} imports {other}, but {_room(other, floors)} is above {_room(file, floors)}"
    arrows = {(file, other): (file, other) for file, imported in graph.items() for other in imported}
    of_rooms = {(_room(file, floors), _room(other, floors)): (file, other) for file, other in arrows}
    circle = _circle(arrows) or _circle({arrow: files for arrow, files in of_rooms.items() if arrow[0] != arrow[1]})
    if circle:
        yield "a circle: " + ", ".join(f"{file} imports {other}" for file, other in circle)


def _room(file: str, floors: Sequence[str]) -> str:
    top, *inside = file.removesuffix(".py").split("/")
    nested = f"{top}/{'/'.join(inside[:2])}"
    return nested if nested in floors else f"{top}/{inside[0]}"


def _floor(file: str, floors: Sequence[str]) -> int | None:
    room, others = _room(file, floors), f"{file.split('/')[0]}/{OTHERS}"
    return next((floors.index(name) for name in (room, others) if name in floors), None)


def _circle(arrows: Mapping[tuple[str, str], tuple[str, str]]) -> list[tuple[str, str]]:
    """What the arrows of a circle stand for; empty if there is none."""
    below: dict[str, set[str]] = {}
    for here, there in arrows:
        below.setdefault(here, set()).add(there)
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        return [arrows[arrow] for arrow in pairwise(reversed(error.args[1]))]
    return []


def _imported(path: Path, files: set[str]) -> Iterator[str]:
    for node in statements(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the import with its full name"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield from _file_of(name, files)


def _file_of(name: str, files: set[str]) -> Iterator[str]:
    """The file of a module, or of the module that a name is in."""
    top, *parts = name.split(".")
    while top == PACKAGE and parts:
        stem = "/".join(parts)
        found = {f"{stem}.py", f"{stem}/__init__.py"} & files
        if found:
            yield found.pop()
            return
        parts.pop()
