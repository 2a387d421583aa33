"""A conversation: each turn computes only what the turns before did not."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import TYPE_CHECKING

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.session_file import SavedText, save_text
from trigraph.runtime.cache.snapshot import Snapshot
from trigraph.runtime.execution.steps import StepResult
from trigraph.runtime.generate import Generation, Options
from trigraph.runtime.state.state import Sequence
from trigraph.runtime.text.template import ChatTemplate, Message

if TYPE_CHECKING:
    from trigraph.runtime.engine import Engine

_UNKNOWN = "\N{SYMBOL FOR NULL}"  # stands for what will be said
# States that are kept, each of a beginning of the next one's text.
_SYSTEM, _QUESTION, _ANSWER = "system", "question", "answer"


class Conversation:
    """Messages, and the state of the text that they make up.

    States are kept after the system message, after the last question, and after its answer. Templates that rewrite old
    answers, for instance to leave the reasoning out, make the last one useless; the one before saves all the rest.
    """

    def __init__(self, engine: Engine, template: ChatTemplate, system: str | None = None) -> None:
        self.messages = first_messages(system)
        self._engine = engine
        self._template = template
        self._states: dict[str, Sequence] = {}
        self._row: StepResult | None = None  # of the last token of the question's state

    def say(self, text: str, options: Options | None = None) -> Reply:
        """The next turn. Iterate over the reply to get its text in pieces.

        Raises TrigraphError when the template refuses the messages or the conversation outgrows the context.
        """
        return self._turn([*self.messages, {"role": "user", "content": text}], options or Options())

    def regenerate(self, options: Options | None = None) -> Reply:
        """The last turn again, for another answer in the old one's place. Raises TrigraphError before any turn."""
        if not (questions := [i for i, message in enumerate(self.messages) if message["role"] == "user"]):
            raise TrigraphError("there is no question to answer again")
        return self._turn(self.messages[: questions[-1] + 1], options or Options())

    def reset(self) -> None:
        """Forgets everything but the system message."""
        self.messages = [message for message in self.messages[:1] if message["role"] == "system"]
        self._release(_QUESTION, _ANSWER)

    def close(self) -> None:
        """Gives the state back; the messages stay, and the next turn computes all of them again."""
        self._release(*self._states)

    def save(self, path: Path) -> None:
        """Writes messages and state to a file. Raises TrigraphError when nothing was said, or it cannot be written."""
        if not self.messages:
            raise TrigraphError("there is no conversation to save yet")
        engine, state = self._engine, self._engine.steps.state
        texts = {sequence.length: sequence for sequence in self._states.values() if sequence.length}
        longest = texts[max(texts)] if texts else None
        row = None if self._row is None else self._row.logits[0]
        points = [
            Snapshot.of(state, text, row if text is self._states.get(_QUESTION) else None)
            for _, text in sorted(texts.items())
        ]
        save_text(path, engine.model, state, longest, points, self.messages)

    def load(self, path: Path) -> None:
        """Goes on with the messages and state of a file instead. Raises TrigraphError for what is not such a file."""
        saved = SavedText(path, self._engine.model, self._engine.steps)
        if not saved.messages:
            raise TrigraphError(f"{path}: holds a prompt and no conversation; give it to run --prompt-cache")
        self.close()
        points = range(len(saved.lengths))[-min(3, self._engine.steps.state.slots.free) :]
        snapshots = [saved.snapshot(i) for i in points]
        sequences = saved.resume(snapshots)
        self._states = dict(zip((_ANSWER, _QUESTION, _SYSTEM), reversed(sequences), strict=False))
        self._row = snapshots[-2].row if len(points) > 1 else None
        self.messages = saved.messages

    @property
    def length(self) -> int:
        """Tokens that the state holds."""
        return max((sequence.length for sequence in self._states.values()), default=0)

    def _turn(self, messages: list[Message], options: Options) -> Reply:
        text = self._template.render(messages)
        prompt = self._encode(text)
        pauses = {self._agreed(text, prompt, [*messages, _message("assistant"), _message("user")]): _QUESTION}
        system = messages[:1] if messages[0]["role"] == "system" else []
        # Two states are what a conversation needs; this one may stand in nobody's way.
        if system and _SYSTEM not in self._states and self._engine.steps.state.slots.free > 2:
            pauses.setdefault(self._agreed(text, prompt, [*system, _message("user")]), _SYSTEM)

        def pause(sequence: Sequence, row: StepResult) -> None:
            name = pauses[sequence.length]
            self._release(name)
            self._states[name] = self._engine.steps.fork(sequence)
            if name == _QUESTION:
                self._row = row.copy()

        sequence = self._start(prompt)
        generation = Generation(self._engine, prompt, options, sequence, self._row, pauses, pause)
        return Reply(self, generation, messages)

    def _encode(self, text: str) -> list[int]:
        """Ids of `text`: those of the longest kept state that begins it, whatever else the tokenizer would choose.

        The tokens of an answer need not be the ones that its text is cut into.
        """
        tokenizer = self._engine.tokenizer
        for state in sorted(self._states.values(), key=lambda state: -state.length):
            begun = tokenizer.spell(state.tokens)
            if begun and text.startswith(begun):
                return [*state.tokens, *tokenizer.encode(text[len(begun) :], start=False)]
        return tokenizer.encode(text)

    def _agreed(self, text: str, prompt: list[int], later: list[Message]) -> int:
        """How many tokens of a prompt will begin the text of later messages as well."""
        try:
            other = self._template.render(later)
        except TrigraphError:  # refused: say, it wants no two turns, and there will be none
            return 0
        return _common(prompt, self._encode(text[: _common(text, other)]))

    def _start(self, prompt: list[int]) -> Sequence:
        """The longest kept state that begins `prompt`, to go on from."""
        for name, state in [*self._states.items()]:
            # A text that ends where the prompt does is of use only with the row that comes after it.
            most = len(prompt) - (name != _QUESTION or self._row is None)
            if state.damaged or state.length > most or state.tokens != prompt[: state.length]:
                self._release(name)
        if _ANSWER not in self._states:
            longest = max(self._states.values(), key=lambda state: state.length, default=None)
            steps = self._engine.steps
            self._states[_ANSWER] = steps.new_sequence() if longest is None else steps.fork(longest)
        return self._states[_ANSWER]

    def _release(self, *names: str) -> None:
        for name in names:
            if name in self._states:
                self._engine.steps.release(self._states.pop(name))


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


def first_messages(system: str | None) -> list[Message]:
    """The messages of a conversation in which nothing was said yet."""
    return [] if system is None else [{"role": "system", "content": system}]


def _message(role: str) -> Message:
    return {"role": role, "content": _UNKNOWN}


def _common(a: SequenceOf[object], b: SequenceOf[object]) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
