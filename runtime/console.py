"""What the command line shows: progress, text as it comes, statistics, and the interactive chat."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from trigraph.exporter.progress import Progress as Callback
from trigraph.models.errors import TrigraphError
from trigraph.runtime.chat import Conversation, Reply
from trigraph.runtime.engine import Engine
from trigraph.runtime.generate import Generation, Options

_HELP = "Type a message; /reset starts again, /exit or Ctrl-D leaves, Ctrl-C stops an answer."


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


def interact(engine: Engine, options: Options, system: str | None, *, raw: bool) -> None:
    """A chat on the terminal; with `raw`, or without a chat template, each line is a text to complete instead."""
    if not raw and engine.template is None:
        say("note: the model has no chat template; it completes each text that you type")
        raw = True
    conversation = None if raw else engine.chat(system)
    say(_HELP)
    while (line := _ask()) is not None and line != "/exit":
        if line == "/reset":
            if conversation is not None:
                conversation.close()
                conversation = engine.chat(system)
        elif line:
            try:
                _answer(engine, conversation, line, options)
            except TrigraphError as error:
                say(f"error: {error}")


def _answer(engine: Engine, conversation: Conversation | None, line: str, options: Options) -> None:
    if conversation is None:
        generation = engine.generate(line, options)
        sys.stdout.write(line)
        answer: Generation | Reply = generation
    else:
        answer = conversation.say(line, options)
        generation = answer.generation
    with _interruptible(generation):
        stream(answer)
    say(generation.stats.line())


def _ask() -> str | None:
    with suppress(ImportError):
        # Editing of the line and a history, where the platform has it.
        import readline  # noqa: F401
    try:
        return input("> ").strip()
    except EOFError:
        say("")
        return None


@contextmanager
def _interruptible(generation: Generation) -> Iterator[None]:
    """Ctrl-C ends the answer between two rounds, so that the conversation can go on; a second one ends the program."""

    def cancel(number: int, frame: FrameType | None) -> None:
        generation.cancel()
        signal.signal(signal.SIGINT, previous)

    previous = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
