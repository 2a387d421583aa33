"""Terminal output: progress bars, streamed text, notes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from trigraph.models.progress import Progress as Callback
from trigraph.runtime.chat import Reply
from trigraph.runtime.scheduler.request import Request


@contextmanager
def progress_bars() -> Iterator[Callback]:
    """Progress bars on stderr while the block runs, one for each stage; none if stderr is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    console = Console(stderr=True)
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        yield show


def stream(pieces: Request | Reply) -> None:
    """Writes text to stdout as it is generated, and a newline at the end, even after an error."""
    try:
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
    finally:
        sys.stdout.write("\n")
        sys.stdout.flush()


def say(line: str) -> None:
    """Writes a line to stderr."""
    print(line, file=sys.stderr, flush=True)
