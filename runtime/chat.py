"""A conversation: each turn computes only what the turns before did not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trigraph.runtime.generate import Generation, Options
from trigraph.runtime.state import Sequence
from trigraph.runtime.template import ChatTemplate, Message

if TYPE_CHECKING:
    from trigraph.runtime.engine import Engine


class Conversation:
    """Messages, and the state of the text that they make up.

    Two states are kept: after the last answer, and before it. Templates that rewrite old answers, for instance to leave
    the reasoning out, make the first one useless; the second one then saves the rest of the conversation.
    """

    def __init__(self, engine: Engine, template: ChatTemplate, system: str | None = None) -> None:
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._engine = engine
        self._template = template
        self._live: Sequence | None = None
        self._before: Sequence | None = None

    def say(self, text: str, options: Options | None = None) -> Reply:
        """The next turn. Iterate over the reply to get its text in pieces.

        Raises TrigraphError when the template refuses the messages or the conversation outgrows the context.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        tokenizer = self._engine.tokenizer
        prompt = tokenizer.encode(self._template.render(messages))
        stable = tokenizer.encode(self._template.render(messages, add_generation_prompt=False))
        sequence = self._start(prompt)
        # Where the next turn's text will still agree with this one's, whatever the answer.
        agreed = _common(prompt[:-1], stable)
        return Reply(
            self, Generation(self._engine, prompt, options or Options(), sequence, agreed, self._remember), messages
        )

    def close(self) -> None:
        """Gives the state back; the messages stay, and the next turn computes all of them again."""
        for sequence in (self._live, self._before):
            if sequence is not None:
                self._engine.steps.release(sequence)
        self._live = self._before = None

    def _start(self, prompt: list[int]) -> Sequence:
        """The longest kept state that begins `prompt`, to go on from."""
        steps = self._engine.steps
        if self._live is not None and not _begins(self._live, prompt):
            steps.release(self._live)
            self._live = None
        if self._before is not None and not _begins(self._before, prompt):
            steps.release(self._before)
            self._before = None
        if self._live is None:
            self._live = steps.new_sequence() if self._before is None else steps.fork(self._before)
        return self._live

    def _remember(self, sequence: Sequence) -> None:
        """Keeps the state that `sequence` is in now for the next turn."""
        if self._before is not None:
            self._engine.steps.release(self._before)
        self._before = self._engine.steps.fork(sequence)


class Reply:
    """An answer in the making; when it has ended, it is part of the conversation."""

    def __init__(self, conversation: Conversation, generation: Generation, messages: list[Message]) -> None:
        self.generation = generation
        self._conversation = conversation
        self._messages = messages

    def __iter__(self) -> Iterator[str]:
        try:
            yield from self.generation
        except BaseException:
            self._conversation.close()
            raise
        self._conversation.messages = [*self._messages, {"role": "assistant", "content": self.generation.text}]


def _begins(sequence: Sequence, prompt: list[int]) -> bool:
    """Whether the sequence's text begins `prompt` and leaves something of it to compute."""
    return not sequence.damaged and sequence.length < len(prompt) and sequence.tokens == prompt[: sequence.length]


def _common(a: list[int], b: list[int]) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
