"""The chat on a terminal: messages, and commands that begin with a slash."""

from __future__ import annotations

import dataclasses
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cli.console import say, stream
from trigraph.runtime.cli.line_input import LineInput
from trigraph.runtime.engine.chat import Conversation, Reply
from trigraph.runtime.engine.engine import Engine
from trigraph.runtime.images.prompt import PromptLengthError
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.options import Options
from trigraph.runtime.text.reply import Event

_SYNONYMS = {"quit": "exit", "bye": "exit"}  # what other programs call it
_WELCOME = "Type a message. /help lists commands, Ctrl-C stops a reply, /exit or Ctrl-D quits."
_COMMAND = re.compile(r"/([a-z]+)(?:[ \t]+(.*))?")


def interact(terminal: Terminal) -> None:
    """Chats until the user quits."""
    say(_WELCOME)
    with LineInput() as lines:
        while not terminal.ended and (line := lines.ask(terminal.prompt)) is not None:
            try:
                terminal.take(line)
            except TrigraphError as error:
                say(f"error: {error}")


class Terminal:
    """Acts on lines that the user types. Without a `conversation`, each line is a prompt of its own."""

    def __init__(
        self, engine: Engine, options: Options, conversation: Conversation | None, *, hide_reasoning: bool = False
    ) -> None:
        self.ended = False
        self._engine, self._options, self._conversation = engine, options, conversation
        self._hide_reasoning = hide_reasoning
        self._results: list[str] = []  # of the last reply's tool calls, as far as they were typed
        self._last: Handle | None = None
        self._commands: dict[str, tuple[str, str, Callable[[str], None]]] = {
            "image": ("FILE", "show an image with the next message", self._image),
            "regen": ("", "regenerate the last reply with another seed", self._regenerate),
            "reset": ("", "start over; the system message stays", self._reset),
            "save": ("FILE", "save the conversation and its state", self._save),
            "load": ("FILE", "resume a saved conversation", self._load),
            "stats": ("", "statistics of the last reply, and context usage", self._stats),
            "help": ("", "list the commands", self._help),
            "exit": ("", "quit", self._exit),
        }

    @property
    def prompt(self) -> str:
        """What asks for the next line: a message, or the result of a tool call."""
        calls = [] if self._conversation is None else self._conversation.calls
        if calls:
            return f"{calls[len(self._results)]['function']['name']} returned> "
        count = 0 if self._conversation is None else len(self._conversation.attached)
        return f"[{count} {'image' if count == 1 else 'images'}] > " if count else "> "

    def take(self, line: str) -> None:
        """Runs a command, or replies to a message. After a TrigraphError the chat can go on."""
        command = _COMMAND.fullmatch(line)
        if command is None:
            if line:
                self._reply_to(line)
            return
        name, argument = _SYNONYMS.get(command[1], command[1]), command[2] or ""
        if name not in self._commands:
            raise TrigraphError(
                f"/{name}: unknown command; /help lists them. Put a space before the slash to send it as a message"
            )
        wanted, _, act = self._commands[name]
        if bool(wanted) != bool(argument):
            raise TrigraphError(f"/{name}: {'give a file name after it' if wanted else 'it takes no argument'}")
        act(argument)

    def _reply_to(self, line: str) -> None:
        if self._conversation is not None:
            calls, results = self._conversation.calls, [*self._results, line]
            if len(results) < len(calls):
                self._results = results
                return
            self._results = []
            chat = self._conversation
            options = self._options
            turn = partial(chat.give, results, options) if calls else partial(chat.say, line.strip(), options)
            self._show(self._shortened(turn))
            return
        request = self._engine.generate(line, self._options)
        sys.stdout.write(line)
        self._show(request)

    def _shortened(self, turn: Callable[[], Reply]) -> Reply:
        """The next turn, without the oldest ones where the context is full."""
        chat, left_out = self._chat(), 0
        before = chat.messages
        while True:
            try:
                reply = turn()
            except PromptLengthError as error:
                if not chat.leave_out_oldest():
                    chat.messages = before
                    raise TrigraphError(f"{error}; /reset starts over") from error
                left_out += 1
            else:
                if left_out:
                    turns = "question and its reply are" if left_out == 1 else f"{left_out} questions and replies are"
                    say(f"note: the context is full; the oldest {turns} left out. /reset starts over")
                return reply

    def _show(self, reply: Handle | Reply) -> None:
        self._last = reply.request if isinstance(reply, Reply) else reply
        shown: Iterable[str | Event] = reply
        if isinstance(reply, Reply) and (self._hide_reasoning or sys.stdout.isatty()):
            shown = reply.events()
        with _interruptible(self._last):
            stream(shown, self._last, hide_reasoning=self._hide_reasoning)
        say(self._last.stats.line())

    def _chat(self) -> Conversation:
        if self._conversation is None:
            raise TrigraphError("there is no conversation: each line is completed on its own")
        return self._conversation

    def _image(self, argument: str) -> None:
        image = self._chat().attach(_path(argument))
        height, width = image.source
        say(f"{argument}: {width} x {height} pixels, {image.tokens} tokens; the next message shows it")

    def _regenerate(self, argument: str) -> None:
        sampling = self._options.chosen_by
        other = dataclasses.replace(sampling, seed=(sampling.seed + 1) % 2**64)
        self._options = dataclasses.replace(self._options, sampling=other)
        self._show(self._chat().regenerate(self._options))

    def _reset(self, argument: str) -> None:
        self._results = []
        if self._conversation is not None:
            self._conversation.reset()

    def _save(self, argument: str) -> None:
        self._chat().save(_path(argument))
        say(f"{argument}: saved {self._chat().length} tokens")

    def _load(self, argument: str) -> None:
        chat, self._results = self._chat(), []
        chat.load(_path(argument))
        say(f"{argument}: {len(chat.messages)} messages, {chat.length} tokens")

    def _stats(self, argument: str) -> None:
        if self._conversation is not None:
            count = len(self._conversation.messages)
            say(f"{count} messages, {self._conversation.length} of {self._engine.context} tokens of context used")
        say("no reply yet" if self._last is None else self._last.stats.line())

    def _help(self, argument: str) -> None:
        for name, (wanted, purpose, _) in self._commands.items():
            say(f"{f'/{name} {wanted}':12} {purpose}")

    def _exit(self, argument: str) -> None:
        self.ended = True


def _path(argument: str) -> Path:
    try:
        return Path(argument).expanduser()
    except RuntimeError as error:
        raise TrigraphError(f"{argument}: unknown home folder ({error})") from error


@contextmanager
def _interruptible(request: Handle) -> Iterator[None]:
    """Ctrl-C stops the reply after the current round, and the conversation can go on; a second one ends the program."""

    def cancel(number: int, frame: FrameType | None) -> None:
        request.cancel()
        signal.signal(signal.SIGINT, previous)

    previous = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
