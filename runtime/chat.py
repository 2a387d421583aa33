"""A conversation: messages, and turns that compute only what the turns before did not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from functools import partial
from pathlib import Path
from typing import Any

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.next_turn import next_turn_checkpoints
from trigraph.runtime.cache.session_file import SessionFile, Turn
from trigraph.runtime.model import Model
from trigraph.runtime.requests.options import Options
from trigraph.runtime.scheduler.request import Request, Runner
from trigraph.runtime.text.history import Message
from trigraph.runtime.text.reply import Event, assistant_message
from trigraph.runtime.text.reply_parser import ReplyParser


class Conversation:
    """Messages, whose state the prefix cache holds as long as it has room.

    Checkpoints are made after the system message, after the last question, and after the reply to it. Templates that
    rewrite old replies, for instance to strip reasoning, make the last one useless; the one before saves all the rest.
    """

    def __init__(
        self,
        model: Model,
        runner: Runner,
        system: str | None = None,
        *,
        tools: SequenceOf[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """`tools` and `variables` are for the chat template."""
        self.messages = first_messages(system)
        self._model, self._runner = model, runner
        self._template = model.chat_template()
        self._tools, self._variables = tools, variables
        self._known: list[list[int]] = []  # tokens of the last turn: prompt and reply, prompt

    def say(self, text: str, options: Options | None = None) -> Reply:
        """The next turn. Iterate over the reply to get its text in pieces.

        Raises TrigraphError when the template refuses the messages or the conversation outgrows the context.
        """
        return self._turn([*self.messages, {"role": "user", "content": text}], options or self._model.defaults)

    @property
    def calls(self) -> list[Mapping[str, Any]]:
        """The tool calls of the last reply, which wait for results."""
        return list(self.messages[-1].get("tool_calls", ())) if self.messages else []

    def give(self, results: SequenceOf[str], options: Options | None = None) -> Reply:
        """The next turn, with the results of the calls, in order, for a question."""
        calls = self.calls
        if not calls or len(results) != len(calls):
            raise TrigraphError(f"{len(calls)} tool calls wait for a result; {len(results)} were given")
        told = [
            {"role": "tool", "tool_call_id": call["id"], "content": text}
            for call, text in zip(calls, results, strict=True)
        ]
        return self._turn([*self.messages, *told], options or self._model.defaults)

    def regenerate(self, options: Options | None = None) -> Reply:
        """The last turn again, for another reply in place of the old one. Raises TrigraphError before any turn."""
        if not (questions := [i for i, message in enumerate(self.messages) if message["role"] == "user"]):
            raise TrigraphError("there is no question to answer again")
        return self._turn(self.messages[: questions[-1] + 1], options or self._model.defaults)

    def reset(self) -> None:
        """Forgets everything but the system message."""
        self.messages = [message for message in self.messages[:1] if message["role"] == "system"]
        self._known = []

    def save(self, path: str | Path) -> None:
        """Writes messages and state to a file. Raises TrigraphError when nothing was said, or it cannot be written."""
        if not self.messages:
            raise TrigraphError("there is no conversation to save yet")
        tokens, prompt = self._known or [[], []]
        cache, identity = self._model.cache, self._model.identity
        turn = Turn(self.messages, tokens, len(prompt))
        self._runner.call(partial(cache.save, Path(path), identity, tokens, turn))

    def load(self, path: str | Path) -> None:
        """Goes on with the messages and state of a file instead. Raises TrigraphError for what is not such a file."""
        saved = SessionFile(Path(path), self._model.identity, self._model.steps)
        turn = saved.turn
        if not turn.messages:
            raise TrigraphError(f"{path}: holds a prompt and no conversation; give it to run --prompt-cache")
        self._runner.call(partial(self._model.cache.load, saved))
        self.messages, self._known = [*turn.messages], [[*turn.tokens], [*turn.tokens[: turn.prompt]]]

    @property
    def length(self) -> int:
        """Tokens of the last turn, and all before it."""
        return max(map(len, self._known), default=0)

    def replied(self, messages: list[Message], reply: Message, request: Request) -> None:
        """Takes a turn that has ended into the conversation."""
        self.messages = [*messages, reply]
        self._known = [[*request.prompt, *request.ids], request.prompt]

    def _turn(self, messages: list[Message], options: Options) -> Reply:
        template, tools, variables = self._template, self._tools, self._variables
        text = template.render(messages, tools=tools, variables=variables)
        prompt = self._encode(text)
        tokenizer = self._model.tokenizer
        checkpoints = next_turn_checkpoints(template, tokenizer, messages, (text, prompt), tools, variables)
        request = Request(self._runner, self._model, prompt, options, checkpoints=checkpoints)
        return Reply(self, request, messages, template.parser(text, tools))

    def _encode(self, text: str) -> list[int]:
        """Ids of `text`: those of the last turn where they begin it, whatever else the tokenizer would choose.

        The tokens of a reply need not be the ones that the tokenizer makes of its text.
        """
        tokenizer = self._model.tokenizer
        for tokens in self._known:
            begun = tokenizer.spell(tokens)
            if begun and text.startswith(begun):
                return self._model.encode(text[len(begun) :], tokens)
        return self._model.encode(text)


class Reply:
    """A reply in the making; when it has ended, it is part of the conversation.

    Iterate over it to get its text in pieces, or over `events` to have reasoning, content and tool calls told apart.
    """

    def __init__(
        self, conversation: Conversation, request: Request, messages: list[Message], parser: ReplyParser
    ) -> None:
        self.request = request
        self._conversation = conversation
        self._messages = messages
        self._parser = parser
        self._events: list[Event] = []
        self._ended = False

    def __iter__(self) -> Iterator[str]:
        for piece in self._pieces():
            if isinstance(piece, str):
                yield piece

    def events(self) -> Iterator[Event]:
        """Reasoning, content and tool calls, in pieces."""
        for piece in self._pieces():
            if not isinstance(piece, str):
                yield from piece

    def _pieces(self) -> Iterator[str | list[Event]]:
        """Text, and then the events that it completes."""
        if self._ended:
            return
        for text in self.request:
            yield text
            yield self._parsed(self._parser.push(text))
        self._ended = True
        last = self._parsed(self._parser.finish())
        self._conversation.replied(self._messages, assistant_message(self._events), self.request)
        yield last

    def _parsed(self, events: list[Event]) -> list[Event]:
        self._events += events
        return events


def first_messages(system: str | None) -> list[Message]:
    """The messages of a conversation in which nothing was said yet."""
    return [] if system is None else [{"role": "system", "content": system}]
