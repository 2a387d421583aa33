"""What the command line shows: progress, and text as it comes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from trigraph.models.progress import Progress as Callback
from trigraph.runtime.chat import Reply
from trigraph.runtime.generate import Generation


@contextmanager
def progress_bars() -> Iterator[Callback]:
    """Bars on stderr, one for each kind of long work, while the block runs; nothing where that is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    console = Console(stderr=True)
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        yield show


def stream(answer: Generation | Reply) -> None:
    """Writes the text to stdout as it comes, with a newline at its end whatever ends it."""
    try:
        for piece in answer:
            sys.stdout.write(piece)
            sys.stdout.flush()
    finally:
        sys.stdout.write("\n")
        sys.stdout.flush()


def say(line: str) -> None:
    """Writes a line to stderr."""
    print(line, file=sys.stderr, flush=True)
