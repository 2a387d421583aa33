"""A conversation: messages, and turns that compute only what the turns before did not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, Unpack

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.next_turn import next_turn_checkpoints, next_turns
from trigraph.runtime.cache.session_file import SessionFile, Turn
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.prompt import ImagePrompt, image_keys, placed, without_images
from trigraph.runtime.images.reader import ImageLike
from trigraph.runtime.images.stored import as_json, from_json
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.keywords import Keywords, asked
from trigraph.runtime.requests.options import Options
from trigraph.runtime.scheduler.driver import Driver
from trigraph.runtime.scheduler.model import Model
from trigraph.runtime.scheduler.new_request import new_request
from trigraph.runtime.text.history import Message
from trigraph.runtime.text.reply import Event, assistant_message
from trigraph.runtime.text.reply_parser import ReplyParser
from trigraph.runtime.text.template import ChatTemplate

Content: TypeAlias = "str | SequenceOf[Mapping[str, Any]]"
"""A text, or parts of type `text` and `image`."""


class Conversation:
    """Messages, whose state the prefix cache holds as long as it has room.

    Checkpoints are made after the system message, after the last question, and after the reply to it. Templates that
    rewrite old replies, for instance to strip reasoning, make the last one useless; the one before saves all the rest.
    """

    def __init__(
        self,
        model: Model,
        driver: Driver,
        template: ChatTemplate,
        system: str | None = None,
        *,
        tools: SequenceOf[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        images: SequenceOf[ImageLike] = (),
    ) -> None:
        """`tools` and `variables` are for the template; `images`: see `attach`."""
        self.messages = first_messages(system)
        self._model, self._driver = model, driver
        self._template, self._tools, self._variables = template, tools, variables
        self._last: _LastTurn | None = None
        self._attached: list[ResizedImage] = []
        for image in images:
            self.attach(image)

    def attach(self, image: ImageLike) -> ResizedImage:
        """Has the next message show an image, before its text.

        A path, the bytes of a JPEG, PNG, WebP or GIF file, an image of Pillow, or a NumPy array. Raises TrigraphError
        for what cannot be read, and for a model that reads text only.
        """
        found = self._model.images.read(image)
        self._attached.append(found)
        return found

    @property
    def attached(self) -> SequenceOf[ResizedImage]:
        """The images that the next message shows."""
        return tuple(self._attached)

    def detach(self) -> None:
        """Takes the images back that the next message would show."""
        self._attached = []

    def say(
        self,
        text: Content,
        options: Options | None = None,
        *,
        images: SequenceOf[ImageLike] = (),
        **keywords: Unpack[Keywords],
    ) -> Reply:
        """The next turn. Iterate over the reply to get its text in pieces.

        `keywords`: see `Engine.generate`; `images`: see `attach`. In place of a text there may be parts, such as
        `{"type": "text", "text": "Which?"}` and `{"type": "image", "image": "FILE.png"}`. Raises TrigraphError when the
        template refuses the messages, an image cannot be read, or the conversation outgrows the context.
        """
        shown = [*self._attached, *(self._model.images.read(image) for image in images)]
        content = self._content(text)
        if shown:
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            content = [*({"type": "image", "image": image} for image in shown), *parts]
        reply = self._turn([*self.messages, {"role": "user", "content": content}], options, keywords)
        self._attached = []
        return reply

    @property
    def calls(self) -> list[Mapping[str, Any]]:
        """The tool calls of the last reply, which wait for results."""
        return list(self.messages[-1].get("tool_calls", ())) if self.messages else []

    def give(self, results: SequenceOf[Content], options: Options | None = None, **keywords: Unpack[Keywords]) -> Reply:
        """The next turn, with the results of the calls, in order, for a question: texts, or parts as `say` takes."""
        calls = self.calls
        if not calls or len(results) != len(calls):
            raise TrigraphError(f"{len(calls)} tool calls wait for a result; {len(results)} were given")
        told = [
            {"role": "tool", "tool_call_id": call["id"], "content": self._content(result)}
            for call, result in zip(calls, results, strict=True)
        ]
        return self._turn([*self.messages, *told], options, keywords)

    def regenerate(self, options: Options | None = None, **keywords: Unpack[Keywords]) -> Reply:
        """The last turn again, for another reply in place of the old one. Raises TrigraphError before any turn."""
        if not (questions := [i for i, message in enumerate(self.messages) if message["role"] == "user"]):
            raise TrigraphError("there is no question to answer again")
        return self._turn(self.messages[: questions[-1] + 1], options, keywords)

    def reset(self) -> None:
        """Forgets everything but the system message."""
        self.messages = [message for message in self.messages[:1] if message["role"] == "system"]
        self._last = None
        self.detach()

    def leave_out_oldest(self) -> bool:
        """Forgets the oldest question and the replies to it. Not the only one while its tool calls wait for results.

        Whether there was one.
        """
        begins = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        if len(begins) < 1 + bool(self.calls):
            return False
        self.messages = self.messages[: begins[0]] + self.messages[[*begins, len(self.messages)][1] :]
        return True

    def save(self, path: str | Path) -> None:
        """Writes messages and state to a file. Raises TrigraphError when nothing was said, or it cannot be written."""
        if not self.messages:
            raise TrigraphError("there is no conversation to save yet")
        tokens, prompt = ([], 0) if self._last is None else (self._last.tokens, self._last.prompt_length)
        cache, identity = self._driver.scheduler.cache, self._model.identity
        turn = Turn(as_json(self.messages), tokens, prompt)
        keys = tokens if self._last is None else self._keys(self._last)
        self._driver.call(partial(cache.save, Path(path), identity, keys, turn))

    def load(self, path: str | Path) -> None:
        """Goes on with the messages and state of a file instead. Raises TrigraphError for what is not such a file."""
        saved = SessionFile(Path(path), self._model.identity, self._model.steps)
        turn = saved.turn
        try:
            messages = from_json(turn.messages)
            images = placed(turn.tokens[: turn.prompt], self._model.tokenizer, without_images(messages)[1])
        except ValueError as error:
            raise TrigraphError(f"{path}: is damaged: its images cannot be read ({error}); save it again") from error
        if not turn.messages:
            raise TrigraphError(f"{path}: holds a prompt and no conversation; give it to run --prompt-cache")
        self._driver.call(partial(self._driver.scheduler.cache.load, saved))
        self.messages = messages
        self._last = _LastTurn([*turn.tokens], turn.prompt, images)

    @property
    def length(self) -> int:
        """Tokens of the last turn, and all before it."""
        return 0 if self._last is None else len(self._last.tokens)

    def replied(self, messages: list[Message], request: Handle, prompt: ImagePrompt) -> None:
        """Takes a turn that has ended into the conversation: all messages, the last one the reply to `prompt`."""
        self.messages = messages
        self._last = _LastTurn([*request.prompt, *request.ids], len(request.prompt), prompt)

    def _turn(self, messages: list[Message], options: Options | None, keywords: Keywords) -> Reply:
        template, tools, variables = self._template, self._tools, self._variables
        shown, images = without_images(messages)
        text, *later = template.render_all([shown, *next_turns(shown, tools)], tools=tools, variables=variables)
        if not isinstance(text, str):
            raise text
        prompt = self._encode(text, images)
        written = prompt.written
        ends = next_turn_checkpoints(self._model.tokenizer, (text, written), later)
        checkpoints = [*map(prompt.length_of, ends)]
        given = prompt if images else written
        wanted = asked(options, keywords, self._model.sampling)
        request = new_request(self._driver, self._model, given, wanted, checkpoints=checkpoints)
        return Reply(self, request, (messages, prompt), template.parser(text, tools))

    def _encode(self, text: str, images: list[ResizedImage]) -> ImagePrompt:
        """Ids of `text`: those of the last turn where they begin it, whatever else the tokenizer would choose.

        The tokens of a reply need not be the ones that the tokenizer makes of its text.
        """
        known: list[int] = []
        for tokens in () if self._last is None else self._last.written():
            begun = self._model.tokenizer.spell(tokens)
            if begun and text.startswith(begun):
                text, known = text[len(begun) :], tokens
                break
        if images:
            return self._model.encode_images(text, images, known)
        return ImagePrompt(tuple(self._model.encode(text, known)))

    def _keys(self, turn: _LastTurn) -> list[int]:
        """Its tokens as the cache has them."""
        vision = self._model.vision
        placed = () if vision is None or not turn.prompt.images else vision.placed(turn.prompt)
        return image_keys(placed, turn.tokens)

    def _content(self, given: Content) -> str | list[Any]:
        """A message's content, with its images read."""
        if isinstance(given, str):
            return given
        return [
            {**part, "image": self._model.images.read(part["image"])} if part.get("image") is not None else part
            for part in given
        ]


@dataclass(frozen=True)
class _LastTurn:
    tokens: list[int]
    """The tokens of its prompt and the reply."""
    prompt_length: int
    prompt: ImagePrompt

    def written(self) -> Iterator[list[int]]:
        """Prompt and reply, and the prompt alone, with one token for each image."""
        prompt = self.prompt.written
        yield [*prompt, *self.tokens[self.prompt_length :]]
        yield prompt


class Reply:
    """A reply in the making; when it has ended, it is part of the conversation.

    `run` returns its text. Iterate over it to get that in pieces, or over `events` to have reasoning, content and tool
    calls told apart.
    """

    def __init__(
        self,
        conversation: Conversation,
        request: Handle,
        prompt: tuple[list[Message], ImagePrompt],
        parser: ReplyParser,
    ) -> None:
        """`prompt`: the messages that it replies to, and their tokens."""
        self.request = request
        self._conversation = conversation
        self._prompt = prompt
        self._parser = parser
        self._events: list[Event] = []
        self._ended = False

    def __iter__(self) -> Iterator[str]:
        for piece in self._pieces():
            if isinstance(piece, str):
                yield piece

    def run(self) -> str:
        """Waits for the end of the reply, and returns its text."""
        return "".join(self)

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
        last = self._parsed(self._parser.finish(self.request.ending))
        messages, prompt = self._prompt
        self._conversation.replied([*messages, assistant_message(self._events)], self.request, prompt)
        yield last

    def _parsed(self, events: list[Event]) -> list[Event]:
        self._events += events
        return events


def first_messages(system: str | None) -> list[Message]:
    """The messages of a conversation in which nothing was said yet."""
    return [] if system is None else [{"role": "system", "content": system}]
