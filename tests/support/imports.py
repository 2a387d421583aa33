"""Who imports whom, and whether the order of rooms allows it.

A room is a folder in one of the top folders. A file that lies in a top folder itself is a room of its own; "*" is the
room of those that are not named.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

PACKAGE = "trigraph"
Rooms = Mapping[str, Sequence[str]]  # top folder -> its rooms, the lowest first; a top folder sees those before it


def import_graph(root: Path, rooms: Rooms) -> dict[str, set[str]]:
    """For each file, relative to `root`, the files that it imports: anywhere, be it in a function or for types only."""
    files = {path.relative_to(root).as_posix() for top in rooms for path in (root / top).rglob("*.py")}
    return {file: set(_imported(root / file, files)) for file in sorted(files)}


def violations(graph: Mapping[str, set[str]], rooms: Rooms) -> Iterator[str]:
    """A sentence for each file without a room, each import that runs up, and the first circle."""
    floors = [f"{top}/{room}" for top, inside in rooms.items() for room in inside]
    room_of = {file: _room(file, floors) for file in graph}
    for file, room in room_of.items():
        if room not in floors:
            yield f"{file} is in no room: give {room} its place in the order of {file.split('/')[0]}"
    for file, imported in graph.items():
        for other in sorted(imported):
            here, there = room_of[file], room_of[other]
            if here in floors and there in floors and floors.index(there) > floors.index(here):
                yield f"{file} imports {other}, but {there} is above {here}"
    try:
        TopologicalSorter({file: imported - {file} for file, imported in graph.items()}).prepare()
    except CycleError as error:
        circle = reversed(error.args[1])
        yield "a circle: " + ", ".join(f"{file} imports {other}" for file, other in pairwise(circle))


def _room(file: str, floors: Sequence[str]) -> str:
    top, *inside = file.removesuffix(".py").split("/")
    room, others = f"{top}/{inside[0]}", f"{top}/*"
    return others if len(inside) == 1 and room not in floors and others in floors else room


def _imported(path: Path, files: set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
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
