"""A conversation: each turn computes only what the turns before did not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.checkpoint import Checkpoint
from trigraph.runtime.cache.prefix import Resumed, common_prefix
from trigraph.runtime.cache.session_file import SessionFile, save_session
from trigraph.runtime.decoding.options import Options
from trigraph.runtime.execution.steps import StepResult, Steps
from trigraph.runtime.generate import Generation
from trigraph.runtime.model import Model
from trigraph.runtime.state.sequence import Sequence
from trigraph.runtime.text.template import Message

_UNKNOWN = "\N{SYMBOL FOR NULL}"  # stands for what will be said
# Sequences that are kept, each a beginning of the next one.
_SYSTEM, _QUESTION, _COMPLETION = "system", "question", "completion"


class Conversation:
    """Messages, and the state after them.

    State is kept after the system message, after the last question, and after the reply to it. Templates that rewrite
    old replies, for instance to strip reasoning, make the last one useless; the one before saves all the rest.
    """

    def __init__(self, model: Model, system: str | None = None) -> None:
        """Raises TrigraphError when the model has no chat template."""
        self.messages = first_messages(system)
        self._model = model
        self._template = model.chat_template()
        self._kept = _Kept(model.steps)

    def say(self, text: str, options: Options | None = None) -> Reply:
        """The next turn. Iterate over the reply to get its text in pieces.

        Raises TrigraphError when the template refuses the messages or the conversation outgrows the context.
        """
        return self._turn([*self.messages, {"role": "user", "content": text}], options or Options())

    def regenerate(self, options: Options | None = None) -> Reply:
        """The last turn again, for another reply in place of the old one. Raises TrigraphError before any turn."""
        if not (questions := [i for i, message in enumerate(self.messages) if message["role"] == "user"]):
            raise TrigraphError("there is no question to answer again")
        return self._turn(self.messages[: questions[-1] + 1], options or Options())

    def reset(self) -> None:
        """Forgets everything but the system message."""
        self.messages = [message for message in self.messages[:1] if message["role"] == "system"]
        self._kept.release(_QUESTION, _COMPLETION)

    def close(self) -> None:
        """Gives the state back; the messages stay, and the next turn computes all of them again."""
        self._kept.release()

    def save(self, path: str | Path) -> None:
        """Writes messages and state to a file. Raises TrigraphError when nothing was said, or it cannot be written."""
        if not self.messages:
            raise TrigraphError("there is no conversation to save yet")
        steps = self._model.steps
        with steps.lock:
            checkpoints, longest = self._kept.checkpoints()
            save_session(Path(path), self._model.identity, steps.state, longest, checkpoints, self.messages)

    def load(self, path: str | Path) -> None:
        """Goes on with the messages and state of a file instead. Raises TrigraphError for what is not such a file."""
        saved = SessionFile(Path(path), self._model.identity, self._model.steps)
        if not saved.messages:
            raise TrigraphError(f"{path}: holds a prompt and no conversation; give it to run --prompt-cache")
        with self._model.steps.lock:
            self.close()
            self._kept.load(saved)
        self.messages = saved.messages

    @property
    def length(self) -> int:
        """Tokens that the state holds."""
        return self._kept.length

    def _turn(self, messages: list[Message], options: Options) -> Reply:
        text = self._template.render(messages)
        prompt = self._encode(text)
        checkpoints = {self._agreed(text, prompt, [*messages, _message("assistant"), _message("user")]): _QUESTION}
        system = messages[:1] if messages[0]["role"] == "system" else []
        if system and _SYSTEM not in self._kept.sequences:
            checkpoints.setdefault(self._agreed(text, prompt, [*system, _message("user")]), _SYSTEM)
        return Reply(self, Generation(self._model, prompt, options, _Turn(self._kept, checkpoints)), messages)

    def _encode(self, text: str) -> list[int]:
        """Ids of `text`: those of the longest kept sequence that begins it, whatever else the tokenizer would choose.

        The tokens of a reply need not be the ones that the tokenizer makes of its text.
        """
        tokenizer = self._model.tokenizer
        for sequence in self._kept.longest_first():
            begun = tokenizer.spell(sequence.tokens)
            if begun and text.startswith(begun):
                return [*sequence.tokens, *tokenizer.encode(text[len(begun) :], start=False)]
        return tokenizer.encode(text)

    def _agreed(self, text: str, prompt: list[int], later: list[Message]) -> int:
        """How many tokens of a prompt will begin the prompt of later messages as well."""
        try:
            other = self._template.render(later)
        except TrigraphError:  # refused: say, it wants no two turns, and there will be none
            return 0
        return common_prefix(prompt, self._encode(text[: common_prefix(text, other)]))


class Reply:
    """A reply in the making; when it has ended, it is part of the conversation."""

    def __init__(self, conversation: Conversation, generation: Generation, messages: list[Message]) -> None:
        self.generation = generation
        self._conversation = conversation
        self._messages = messages
        self._ended = False

    def __iter__(self) -> Iterator[str]:
        if self._ended:
            return
        try:
            yield from self.generation
        except BaseException:
            self._conversation.close()
            raise
        self._ended = True
        self._conversation.messages = [*self._messages, {"role": "assistant", "content": self.generation.text}]


def first_messages(system: str | None) -> list[Message]:
    """The messages of a conversation in which nothing was said yet."""
    return [] if system is None else [{"role": "system", "content": system}]


def _message(role: str) -> Message:
    return {"role": role, "content": _UNKNOWN}


class _Kept:
    """The sequences that a conversation keeps, each of a beginning of the next one's tokens."""

    def __init__(self, steps: Steps) -> None:
        self.sequences: dict[str, Sequence] = {}
        self._row: StepResult | None = None  # of the last token of the question's sequence
        self._steps = steps

    @property
    def length(self) -> int:
        """Tokens of the longest one."""
        return max((sequence.length for sequence in self.sequences.values()), default=0)

    def longest_first(self) -> list[Sequence]:
        """The sequences in descending order of length."""
        return sorted(self.sequences.values(), key=lambda sequence: -sequence.length)

    def start(self, prompt: list[int]) -> tuple[Sequence, StepResult | None]:
        """The longest one that begins `prompt`, to go on from, and the question's row; those of no use are released."""
        for name, sequence in [*self.sequences.items()]:
            # A sequence that ends where the prompt does is of use only with the row that comes after it.
            most = len(prompt) - (name != _QUESTION or self._row is None)
            if sequence.damaged or sequence.length > most or sequence.tokens != prompt[: sequence.length]:
                self.release(name)
        if _COMPLETION not in self.sequences:
            longest = self.longest_first()
            self.sequences[_COMPLETION] = self._steps.fork(longest[0]) if longest else self._steps.new_sequence()
        return self.sequences[_COMPLETION], self._row

    def keep(self, name: str, sequence: Sequence, row: StepResult) -> None:
        """Keeps a fork of `sequence`, and `row`, that of its last token, where it is the question's."""
        self.release(name)
        self.sequences[name] = self._steps.fork(sequence)
        if name == _QUESTION:
            self._row = row.copy()

    def release(self, *names: str) -> None:
        """Gives some of the sequences back, or all of them."""
        with self._steps.lock:
            for name in names or [*self.sequences]:
                if name in self.sequences:
                    self._steps.release(self.sequences.pop(name))

    def checkpoints(self) -> tuple[list[Checkpoint], Sequence | None]:
        """Checkpoints in ascending order of length, and the sequence of the last one."""
        by_length = {sequence.length: sequence for sequence in self.sequences.values() if sequence.length}
        if not by_length:
            return [], None
        ordered = [sequence for _, sequence in sorted(by_length.items())]
        question, row = self.sequences.get(_QUESTION), None if self._row is None else self._row.logits[0]
        state = self._steps.state
        return [Checkpoint.of(state, seq, row if seq is question else None) for seq in ordered], ordered[-1]

    def load(self, saved: SessionFile) -> None:
        """Takes over the sequences of a file, the longest ones of them where slots are short."""
        newest = range(len(saved.lengths))[-min(3, self._steps.state.slots.free) :]
        checkpoints = [saved.checkpoint(i) for i in newest]
        sequences = saved.resume(checkpoints)
        self.sequences = dict(zip((_COMPLETION, _QUESTION, _SYSTEM), reversed(sequences), strict=False))
        self._row = checkpoints[-2].row if len(checkpoints) > 1 else None

    def room_for_system(self) -> bool:
        """Whether slots are left when a conversation has the two that it needs."""
        return self._steps.state.slots.free > 2


class _Turn:
    """One turn's use of what a conversation keeps; see Prefix. `checkpoints`: by length, what is kept there."""

    def __init__(self, kept: _Kept, checkpoints: dict[int, str]) -> None:
        self._kept, self._checkpoints = kept, checkpoints

    def resume(self, prompt: list[int]) -> Resumed:
        """See Prefix."""
        wanted = {n for n, name in self._checkpoints.items() if name != _SYSTEM or self._kept.room_for_system()}
        return Resumed(*self._kept.start(prompt), frozenset(wanted))

    def checkpoint(self, sequence: Sequence, row: StepResult) -> None:
        """See Prefix."""
        self._kept.keep(self._checkpoints[sequence.length], sequence, row)

    def finish(self, sequence: Sequence) -> None:
        """See Prefix: the conversation keeps it."""
