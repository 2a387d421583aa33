"""Terminal output: progress bars, streamed text, notes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from trigraph.models.progress import Progress as Callback
from trigraph.runtime.chat import Reply
from trigraph.runtime.scheduler.request import Request

_CLEAR_LINE = "\x1b[K"


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
    """Writes text to stdout as it is generated, and a newline at the end, even after an error.

    While a long prompt is computed, a terminal shows how far that is.
    """
    request = pieces.request if isinstance(pieces, Reply) else pieces
    progress = _PromptProgress(request)
    if sys.stderr.isatty():
        request.listen(progress.show)
    try:
        for piece in pieces:
            progress.clear()
            sys.stdout.write(piece)
            sys.stdout.flush()
    finally:
        progress.clear()
        sys.stdout.write("\n")
        sys.stdout.flush()


class _PromptProgress:
    """A line on stderr that says how much of a prompt is computed, from a second after the start."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._from = time.monotonic() + 1
        self._shown = False

    def show(self) -> None:
        """Writes the line anew."""
        done, length = self._request.progress
        if not self._request.text and done < length and time.monotonic() >= self._from:
            self._shown = True
            sys.stderr.write(f"\r{_CLEAR_LINE}prompt: {done} of {length} tokens")
            sys.stderr.flush()

    def clear(self) -> None:
        """Takes the line away."""
        if self._shown:
            self._shown = False
            sys.stderr.write(f"\r{_CLEAR_LINE}")
            sys.stderr.flush()


def say(line: str) -> None:
    """Writes a line to stderr."""
    print(line, file=sys.stderr, flush=True)
