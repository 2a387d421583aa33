"""Terminal output: progress bars, streamed text, notes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from trigraph.models.progress import Progress as Callback
from trigraph.models.progress import silent
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.text.reply import CallBegun, CallEnded, Content, Event, Reasoning
from trigraph.runtime.text.reply_parser import ReplyParser

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_CLEAR_LINE = "\x1b[K"
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


@contextmanager
def progress_bars(*, of_bytes: bool = True) -> Iterator[Callback]:
    """Shows progress on stderr while the block runs, a bar for each stage, if stderr is a terminal.

    Progress is counted in bytes, or else in plain numbers.
    """
    tasks: dict[str, TaskID] = {}
    bars: Progress | None = None

    def show(stage: str, done: int, total: int) -> None:
        nonlocal bars
        if bars is None:
            bars = opened.enter_context(_bars(of_bytes=of_bytes))
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=total)
        bars.update(tasks[stage], completed=done)

    with ExitStack() as opened:
        yield show if sys.stderr.isatty() else silent


def _bars(*, of_bytes: bool) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    count = DownloadColumn(binary_units=True) if of_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def stream(pieces: Iterable[str | Event], request: Handle, *, hide_reasoning: bool = False) -> None:
    """Writes a reply to stdout as it is generated, and a newline at the end, even after an error.

    Pieces are text, or events: reasoning is dimmed on a terminal, and a tool call is `name {arguments}` on a line.
    While a long prompt or a large image is computed, a terminal shows how far that is.
    """
    progress = _PromptProgress(request)
    painter = _Painter(hide_reasoning, colour=sys.stdout.isatty())
    if sys.stderr.isatty():
        request.listen(progress.show)
    try:
        for piece in pieces:
            progress.clear()
            sys.stdout.write(piece if isinstance(piece, str) else painter.paint(piece))
            sys.stdout.flush()
    finally:
        progress.clear()
        sys.stdout.write("\n")
        sys.stdout.flush()


def events_of(request: Handle, parser: ReplyParser) -> Iterator[Event]:
    """The events of a reply as it is generated."""
    for text in request:
        yield from parser.push(text)
    yield from parser.finish(request.ending)


class _Painter:
    """Events as text for a terminal, or a file."""

    def __init__(self, hide_reasoning: bool, *, colour: bool) -> None:
        self._hide, self._colour = hide_reasoning, colour
        self._last: type[Event] | None = None

    def paint(self, event: Event) -> str:
        """The text to write."""
        if isinstance(event, CallEnded) or (self._hide and isinstance(event, Reasoning)):
            return ""
        last, self._last = self._last, type(event)
        match event:
            case CallBegun():
                return ("" if last is None else "\n") + event.name + " "
            case Reasoning() if self._colour:
                return _DIM + event.text + _PLAIN
            case Content() if last not in (None, Content):
                return "\n\n" + event.text
        return event.text


class _PromptProgress:
    """A line on stderr that says how much of a prompt, or of an image in it, is computed; from a second on."""

    def __init__(self, request: Handle) -> None:
        self._request = request
        self._from = time.monotonic() + 1
        self._shown = ""

    def show(self) -> None:
        """Writes the line anew, where it has changed."""
        line = self._line()
        if line not in ("", self._shown) and time.monotonic() >= self._from:
            self._shown = line
            sys.stderr.write(f"\r{_CLEAR_LINE}{line}")
            sys.stderr.flush()

    def _line(self) -> str:
        done, length = self._request.progress
        if self._request.text or done >= length:
            return ""
        if (reading := self._request.reading) is not None:
            number, part = reading
            return f"image {number}: {100 * part:.0f} %"
        return f"prompt: {done} of {length} tokens"

    def clear(self) -> None:
        """Takes the line away."""
        if self._shown:
            self._shown = ""
            sys.stderr.write(f"\r{_CLEAR_LINE}")
            sys.stderr.flush()


def say(line: str) -> None:
    """Writes a line to stderr, unless nobody can read it there: as on a terminal that has been closed."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)
