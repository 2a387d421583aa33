"""Session files: a sequence and its state.

The file is in the safetensors format. Metadata, each a string: `format` "trigraph session", `version` "3", and as JSON
`model` (see ModelIdentity), `checkpoints` (length, to_commit and mtp_len of each one, in ascending order of length),
`messages` of a chat and `prompt` (tokens of its last prompt); `crc32` is their checksum. A file with images is of
version "4": `images` has place, height, width and digest of each one, whose keys stand in the tokens. Tensors, with n
tokens, p pages in use, m tokens of the chat's last prompt and reply, and i counting the checkpoints:

| name | type | shape |
|---|---|---|
| `tokens` | int64 | [n] |
| `turn`, of a chat | int64 | [m] |
| `pages.{state tensor}` | as in the package | [p, ...]: `kv` and `mtp`, zeros behind the end of the sequence |
| `{i}.{state tensor}` | float32 | [...]: a slot of `gdn` |
| `{i}.hiddens`, and `{i}.logits` of some | float32 | [rows, hidden], [vocabulary] |
| `crc32` | int64 | checksums of the other tensors, in the order of their names |
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections import abc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError
from trigraph.models.rope_positions import ImageSpan
from trigraph.runtime.cache.checkpoint import Checkpoint
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.cache.tensor_file import Pieces, TensorFile, write_tensors
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.images.image import prefix_keys
from trigraph.runtime.images.prompt import PlacedImage
from trigraph.runtime.state.sequence import Sequence
from trigraph.runtime.state.state import State, StateBuffer
from trigraph.runtime.text.template import Message

_FORMAT, _VERSION, _IMAGE_VERSION = "trigraph session", "3", "4"
_MOST_IMAGE_TOKENS = 1 << 20  # far more than an image has
_NUMBERS = ("length", "to_commit", "mtp_len")  # of a checkpoint


@dataclass(frozen=True)
class Turn:
    """The last turn of a conversation."""

    messages: abc.Sequence[Message] = ()
    """Those of all turns."""
    tokens: abc.Sequence[int] = ()
    """Its prompt and the reply."""
    prompt: int = 0
    """How many of these the prompt has."""


def save_session(
    path: Path,
    model: ModelIdentity,
    state: State,
    sequence: Sequence | None,
    checkpoints: abc.Sequence[Checkpoint],
    turn: Turn | None = None,
) -> None:
    """Writes `sequence` with checkpoints of it, in ascending order of length; the last one is of its end.

    No sequence: the turn alone. Replaces an older session file. Raises TrigraphError when there is another kind of
    file, or it cannot be written.
    """
    if os.path.exists(path):
        _open(path)
    tensors = [] if sequence is None else page_tensors(state, sequence)
    tokens, images = ([], ()) if sequence is None else (sequence.tokens, sequence.images)
    write_session(path, model, tokens, tensors, checkpoints, turn, images)


def write_session(
    path: Path,
    model: ModelIdentity,
    tokens: list[int],
    pages: abc.Sequence[Pieces],
    checkpoints: abc.Sequence[Checkpoint],
    turn: Turn | None = None,
    images: abc.Sequence[PlacedImage] = (),
) -> None:
    """Like `save_session`, of what was taken out of the state before; whatever is at `path` is replaced."""
    tensors = [Pieces("tokens", np.int64, (len(tokens),), [np.array(tokens, np.int64)]), *pages]
    for i, checkpoint in enumerate(checkpoints):
        arrays = {**checkpoint.recurrent, "hiddens": checkpoint.hiddens}
        if checkpoint.logits is not None:
            arrays["logits"] = checkpoint.logits
        tensors += [Pieces(f"{i}.{name}", array.dtype, array.shape, [array]) for name, array in arrays.items()]
    numbers = [{name: getattr(checkpoint, name) for name in _NUMBERS} for checkpoint in checkpoints]
    described: dict[str, Any] = {"model": dataclasses.asdict(model), "checkpoints": numbers, "messages": []}
    if turn is not None:
        tensors.append(Pieces("turn", np.int64, (len(turn.tokens),), [np.array(turn.tokens, np.int64)]))
        described |= {"messages": list(turn.messages), "prompt": turn.prompt}
    if shown := [_image_fields(image) for image in images if image.span.start < len(tokens)]:
        described["images"] = shown
    version = _IMAGE_VERSION if shown else _VERSION
    metadata = {"format": _FORMAT, "version": version} | {key: json.dumps(value) for key, value in described.items()}
    write_tensors(path, tensors, metadata)


def page_tensors(state: State, sequence: Sequence) -> list[Pieces]:
    """The KV pages of a sequence, as views of the state."""
    page = state.limits.page_size
    numbers = sequence.pages[: state.pages_of(sequence.length)].tolist()

    def arrays(buffer: StateBuffer, end: int) -> Iterator[NDArray[Any]]:
        for i, number in enumerate(numbers):
            rows = buffer.current[number]
            if end < (i + 1) * page:  # what stands behind may be of another sequence
                rows = rows.copy()
                rows[max(0, end - i * page) :] = 0
            yield rows

    return [
        Pieces(
            f"pages.{name}",
            buffer.current.dtype,
            (len(numbers), *buffer.current.shape[1:]),
            arrays(buffer, min(sequence.mtp_len, sequence.length) if name.startswith("mtp.") else sequence.length),
        )
        for name, buffer in state.paged.items()
    ]


def _open(path: Path) -> TensorFile:
    file = TensorFile(path, "a session file")
    if file.metadata.get("format") != _FORMAT:
        raise file.damaged("it says nothing of one")
    if (version := file.metadata.get("version")) not in (_VERSION, _IMAGE_VERSION):
        raise file.damaged(f"it is of version {version}, this program reads {_VERSION} and {_IMAGE_VERSION}")
    return file


class SessionFile:
    """An opened file, for one model and its state; whatever is read is checked."""

    def __init__(self, path: Path, model: ModelIdentity, steps: Steps) -> None:
        """Raises TrigraphError when the file is damaged, is of another model, or outgrows the context."""
        self._steps = steps
        self._file = _open(path)
        saved = self._decode("model", _identity)
        if saved != model:
            raise TrigraphError(
                f"{path}: was saved with the model {saved}, and this is {model}; load that one, or name another file"
            )
        messages: list[Message] = self._decode("messages", _messages)
        self.images: tuple[PlacedImage, ...] = ()
        if "images" in self._file.metadata:
            self.images = self._decode("images", _images)
        self._checkpoints: list[dict[str, Any]] = self._decode("checkpoints", list)
        self.tokens: list[int] = self._file.read("tokens", np.int64, (self._file.rows("tokens"),)).tolist()
        try:
            self._check_numbers()
        except (KeyError, TypeError, ValueError) as error:
            raise self._file.damaged("the checkpoints contradict the tokens") from error
        self.turn = self._turn(messages)
        if len(self.tokens) > steps.state.limits.context:
            raise TrigraphError(
                f"{path}: the session has {len(self.tokens)} tokens and the context holds "
                f"{steps.state.limits.context}; load with a larger context"
            )

    @property
    def lengths(self) -> list[int]:
        """Lengths of the checkpoints, in ascending order."""
        return [numbers["length"] for numbers in self._checkpoints]

    @property
    def pages(self) -> int:
        """KV pages that the longest one takes."""
        return self._steps.state.pages_of(len(self.tokens))

    def has_row(self, index: int) -> bool:
        """Whether a checkpoint has the row of its last token."""
        return f"{index}.logits" in self._file.names

    def checkpoint(self, index: int) -> Checkpoint:
        """A checkpoint, read from the file."""
        numbers, state = self._checkpoints[index], self._steps.state
        rows = self._file.rows(f"{index}.hiddens")
        if not 1 <= rows <= numbers["length"] + 1:
            raise self._file.damaged(f"{rows} hidden rows for {numbers['length']} tokens")
        return Checkpoint(
            numbers["length"],
            numbers["to_commit"],
            numbers["mtp_len"],
            self._file.read(f"{index}.hiddens", np.float32, (rows, state.limits.hidden)),
            {
                name: self._file.read(f"{index}.{name}", buffer.current.dtype, buffer.current.shape[1:])
                for name, buffer in state.recurrent.items()
            },
            self._file.read(f"{index}.logits", np.float32, (self._steps.vocab,)) if self.has_row(index) else None,
        )

    def resume(self, checkpoints: abc.Sequence[Checkpoint]) -> list[Sequence]:
        """A sequence at each of some checkpoints, in ascending order of length; they share KV pages."""
        state = self._steps.state
        sequences: list[Sequence] = []
        if not checkpoints:  # nor are there pages
            return sequences
        try:
            for checkpoint in checkpoints:
                sequences.append(self._steps.fork(sequences[-1]) if sequences else self._steps.new_sequence())
                checkpoint.restore(state, sequences[-1], self.tokens)
                sequences[-1].images = self.images
            for name, buffer in state.paged.items():
                pages = self._file.read(f"pages.{name}", buffer.current.dtype, (self.pages, *buffer.current.shape[1:]))
                for sequence in sequences:
                    buffer.current[sequence.pages[: sequence.page_count]] = pages[: sequence.page_count]
        except BaseException:
            for sequence in sequences:
                self._steps.release(sequence)
            raise
        return sequences

    def _decode(self, key: str, convert: Any) -> Any:
        try:
            return convert(json.loads(self._file.metadata[key]))
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise self._file.damaged(f"its {key} cannot be read") from error

    def _turn(self, messages: list[Message]) -> Turn:
        """The last turn of the conversation; in files of earlier programs, what their tokens have of it."""
        if "turn" not in self._file.names:
            return Turn(messages, self.tokens, len(self.tokens))
        tokens: list[int] = self._file.read("turn", np.int64, (self._file.rows("turn"),)).tolist()
        prompt: int = self._decode("prompt", int)
        if not (0 <= prompt <= len(tokens) and all(0 <= token < self._steps.vocab for token in tokens)):
            raise self._file.damaged("its last turn has tokens that the model does not have")
        return Turn(messages, tokens, prompt)

    def _check_numbers(self) -> None:
        """Raises KeyError, TypeError or ValueError for numbers that no save writes."""
        shortest = 1
        for numbers in self._checkpoints:
            length, to_commit, mtp_len = (numbers[name] for name in _NUMBERS)
            most = self._steps.max_pending
            if not (
                all(type(number) is int for number in (length, to_commit, mtp_len))
                and shortest <= length <= len(self.tokens)
                and 0 <= to_commit <= min(most, length)
                and 0 <= mtp_len <= length
            ):
                raise ValueError
            shortest = length + 1
        if len(self.tokens) != (self._checkpoints[-1]["length"] if self._checkpoints else 0):
            raise ValueError
        ids, end = [*self.tokens], 0
        for image in self.images:
            span, keys = image.span, prefix_keys(image.digest, min(image.span.tokens, len(ids))).tolist()
            if not end <= span.start < len(ids) or ids[span.start : span.end] != keys[: len(ids) - span.start]:
                raise ValueError
            end = span.end
            ids[span.start : end] = [0] * len(ids[span.start : end])
        if not all(0 <= token < self._steps.vocab for token in ids):
            raise ValueError


def _image_fields(image: PlacedImage) -> list[int | str]:
    return [image.span.start, image.span.height, image.span.width, image.digest.hex()]


def _images(value: Any) -> tuple[PlacedImage, ...]:
    """Raises TypeError or ValueError for what is not a list of `_image_fields`."""
    found = []
    for start, height, width, digest in value:
        if not all(type(number) is int for number in (start, height, width)) or min(start, height - 1, width - 1) < 0:
            raise ValueError
        if height * width > _MOST_IMAGE_TOKENS:
            raise ValueError
        found.append(PlacedImage(ImageSpan(start, height, width), bytes.fromhex(digest)))
    return tuple(found)


def _messages(value: Any) -> list[Message]:
    """Raises ValueError for what is not a list of messages."""
    for message in value:
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            raise ValueError
        content = message.get("content")
        if not (isinstance(content, str) or (isinstance(content, list) and all(isinstance(p, dict) for p in content))):
            raise ValueError
    return list(value)


def _identity(value: Any) -> ModelIdentity:
    """Raises TypeError or ValueError for what is not the description of a model."""
    found = ModelIdentity(**value)
    if [type(item) for item in dataclasses.astuple(found)] != [type(i) for i in dataclasses.astuple(ModelIdentity())]:
        raise ValueError
    return found
