"""The chat on a terminal: lines of the user, and commands that begin with a slash."""

from __future__ import annotations

import dataclasses
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from trigraph.models.errors import TrigraphError
from trigraph.runtime.chat import Conversation, Reply
from trigraph.runtime.cli.console import say, stream
from trigraph.runtime.decoding.request import Options
from trigraph.runtime.engine import Engine
from trigraph.runtime.generate import Generation

_WELCOME = "Type a message; /help lists commands, /exit or Ctrl-D leaves, Ctrl-C stops an answer."
_COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*))?")


def interact(engine: Engine, options: Options, system: str | None, *, raw: bool) -> None:
    """A chat on the terminal; with `raw`, or without a chat template, each line is a text to complete instead."""
    if not raw and engine.template is None:
        say("note: the model has no chat template; it completes each text that you type")
        raw = True
    terminal = Terminal(engine, options, None if raw else engine.chat(system))
    say(_WELCOME)
    while not terminal.ended and (line := _ask()) is not None:
        try:
            terminal.take(line)
        except TrigraphError as error:
            say(f"error: {error}")


class Terminal:
    """What a line does. Without a `conversation` it is a text to complete."""

    def __init__(self, engine: Engine, options: Options, conversation: Conversation | None) -> None:
        self.ended = False
        self._engine, self._options, self._conversation = engine, options, conversation
        self._last: Generation | None = None
        self._commands: dict[str, tuple[str, str, Callable[[str], None]]] = {
            "regen": ("", "answer the last message again, with other random numbers", self._regenerate),
            "reset": ("", "forget all but the system message", self._reset),
            "save": ("FILE", "keep the conversation and its state", self._save),
            "load": ("FILE", "go on with a conversation that was saved", self._load),
            "stats": ("", "the last answer, and how full the context is", self._stats),
            "help": ("", "this list", self._help),
            "exit": ("", "leave", self._exit),
        }

    def take(self, line: str) -> None:
        """Obeys a command or answers a message. Raises TrigraphError for what cannot be done; the chat can go on."""
        command = _COMMAND.fullmatch(line)
        if command is None:
            if line:
                self._answer(line)
            return
        name, argument = command[1], command[2] or ""
        if name not in self._commands:
            raise TrigraphError(
                f"/{name}: is no command; /help lists them, and a space before the slash sends a message"
            )
        wanted, _, act = self._commands[name]
        if bool(wanted) != bool(argument):
            raise TrigraphError(f"/{name}: give {f'the name of a {wanted.lower()}' if wanted else 'nothing'} after it")
        act(argument)

    def _answer(self, line: str) -> None:
        if self._conversation is not None:
            self._show(self._conversation.say(line.strip(), self._options))
            return
        generation = self._engine.generate(line, self._options)
        sys.stdout.write(line)
        self._show(generation)

    def _show(self, answer: Generation | Reply) -> None:
        self._last = answer.generation if isinstance(answer, Reply) else answer
        with _interruptible(self._last):
            stream(answer)
        say(self._last.stats.line())

    def _chat(self) -> Conversation:
        if self._conversation is None:
            raise TrigraphError("there is no conversation: each line is a text of its own")
        return self._conversation

    def _regenerate(self, argument: str) -> None:
        sampling = self._options.sampling
        other = dataclasses.replace(sampling, seed=(sampling.seed + 1) % 2**64)
        self._options = dataclasses.replace(self._options, sampling=other)
        self._show(self._chat().regenerate(self._options))

    def _reset(self, argument: str) -> None:
        if self._conversation is not None:
            self._conversation.reset()

    def _save(self, argument: str) -> None:
        self._chat().save(_path(argument))
        say(f"{argument}: saved {self._chat().length} tokens")

    def _load(self, argument: str) -> None:
        chat = self._chat()
        chat.load(_path(argument))
        say(f"{argument}: {len(chat.messages)} messages, {chat.length} tokens")

    def _stats(self, argument: str) -> None:
        if self._conversation is not None:
            count = len(self._conversation.messages)
            say(f"{count} messages, {self._conversation.length} tokens of {self._engine.context} in the state")
        say("nothing was answered yet" if self._last is None else self._last.stats.line())

    def _help(self, argument: str) -> None:
        for name, (wanted, purpose, _) in self._commands.items():
            say(f"{f'/{name} {wanted}':12} {purpose}")

    def _exit(self, argument: str) -> None:
        self.ended = True


def _path(argument: str) -> Path:
    try:
        return Path(argument).expanduser()
    except RuntimeError as error:
        raise TrigraphError(f"{argument}: names a home folder that is not there ({error})") from error


def _ask() -> str | None:
    with suppress(ImportError):
        # Editing of the line and a history, where the platform has it.
        import readline  # noqa: F401
    try:
        return input("> ").rstrip()
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
