"""Session files: a sequence and its state.

The file is in the safetensors format. Metadata, each a string: `format` "trigraph session", `version` "3", and as JSON
`model` (see ModelIdentity), `checkpoints` (length, to_commit and mtp_len of each one, in ascending order of length),
`messages` of a chat and `prompt` (tokens of its last prompt); `crc32` is their checksum. A file with images is of
version "4": `images` has place, height, width and digest of each one, whose keys stand in the tokens. A file of version
"5", in a cache folder, has the pages from number `first_page` on; those before are in another one's, of a beginning of
its tokens. Tensors, with n tokens, p pages, m tokens of the chat's last prompt and reply, and i counting the
checkpoints:

| name | type | shape |
|---|---|---|
| `tokens` | int64 | [n] |
| `turn`, of a chat | int64 | [m] |
| `pages.{state tensor}` | as in the package | [p, ...]: `kv`, `mtp`, `draft`; zeros behind the end of the sequence |
| `{i}.{state tensor}` | as in the package | [...]: a slot of `gdn`, or a ring of `draft` |
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
from trigraph.runtime.cache.checkpoint import Checkpoint
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.cache.kv_pages import page_tensors, settled
from trigraph.runtime.cache.session_metadata import image_fields, read_identity, read_images, read_messages
from trigraph.runtime.cache.tensor_file import FileError, Pieces, TensorFile, write_tensors
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.images.image import prefix_keys
from trigraph.runtime.images.prompt import PlacedImage
from trigraph.runtime.state.sequence import Sequence
from trigraph.runtime.state.state import State, StateBuffer
from trigraph.runtime.text.template import Message

_FORMAT, _VERSION, _IMAGE_VERSION, _PART_VERSION = "trigraph session", "3", "4", "5"
_NUMBERS = ("length", "to_commit", "mtp_len")  # of a checkpoint


@dataclass(frozen=True)
class Turn:
    """The last turn of a conversation."""

    messages: abc.Sequence[Message] = ()
    """The messages of all turns."""
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
    first_page: int = 0,
) -> None:
    """Like `save_session`, of `pages` from number `first_page` on; whatever is at `path` is replaced."""
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
    if shown := [image_fields(image) for image in images if image.span.start < len(tokens)]:
        described["images"] = shown
    version = _IMAGE_VERSION if shown else _VERSION
    if first_page:
        version, described["first_page"] = _PART_VERSION, first_page
    metadata = {"format": _FORMAT, "version": version} | {key: json.dumps(value) for key, value in described.items()}
    write_tensors(path, tensors, metadata)


def _open(path: Path, *, part: bool = False) -> TensorFile:
    file = TensorFile(path, "a session file")
    if file.metadata.get("format") != _FORMAT:
        raise file.damaged("it says nothing of one")
    version = file.metadata.get("version")
    if version == _PART_VERSION and not part:
        raise FileError(path, "is a part of a conversation in a cache folder; name a file that was saved by itself")
    if version not in (_VERSION, _IMAGE_VERSION, _PART_VERSION):
        raise file.damaged(f"it is of version {version}, this program reads {_VERSION} and {_IMAGE_VERSION}")
    return file


class SessionFile:
    """An opened file, for one model and its state; whatever is read is checked."""

    def __init__(
        self, path: Path, model: ModelIdentity, steps: Steps, *, part: bool = False, before: SessionFile | None = None
    ) -> None:
        """`part`: it may be one, and `before` has the pages before its own, unless they are elsewhere.

        Raises TrigraphError when the file is damaged, is of another model, or outgrows the context.
        """
        self._steps, self._before = steps, before
        self._file = _open(path, part=part)
        saved = self._decode("model", read_identity)
        if saved != model:
            raise TrigraphError(
                f"{path}: was saved with the model {saved}, and this is {saved.versus(model)}; load that one, or name "
                "another file"
            )
        messages: list[Message] = self._decode("messages", read_messages)
        self.images: tuple[PlacedImage, ...] = ()
        if "images" in self._file.metadata:
            self.images = self._decode("images", read_images)
        self._checkpoints: list[dict[str, Any]] = self._decode("checkpoints", list)
        self.tokens: list[int] = self._file.read("tokens", np.int64, (self._file.rows("tokens"),)).tolist()
        try:
            self._check_numbers()
        except (KeyError, TypeError, ValueError) as error:
            raise self._file.damaged("the checkpoints contradict the tokens") from error
        self.first_page: int = self._decode("first_page", int) if "first_page" in self._file.metadata else 0
        """Number of the first page that it has itself."""
        if not 0 <= self.first_page <= max(0, self.pages - 1):
            raise self._file.damaged("it has no pages")
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

    @property
    def settled_pages(self) -> int:
        """Pages to which whoever goes on from the longest one adds nothing."""
        numbers, state = self._checkpoints[-1], self._steps.state
        return settled(state, numbers["length"], numbers["mtp_len"]) // state.limits.page_size

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

    def resume(self, checkpoints: abc.Sequence[Checkpoint], base: Sequence | None = None) -> list[Sequence]:
        """A sequence at each of some checkpoints, in ascending order of length; they share KV pages.

        `base` becomes the first one: it holds a beginning of the tokens, and all KV of it; its full pages are not read.
        """
        state, size = self._steps.state, self._steps.state.limits.page_size
        sequences: list[Sequence] = []
        own = [base.length // size if base else 0]  # the first page of each sequence that is not another one's
        own += [checkpoint.length // size for checkpoint in checkpoints]
        try:
            for checkpoint in checkpoints:
                sequences.append(self._steps.fork(sequences[-1]) if sequences else base or self._steps.new_sequence())
                checkpoint.restore(state, sequences[-1], self.tokens)
                sequences[-1].images = self.images
            for name, buffer in state.paged.items() if checkpoints else ():
                for start, rows in self._page_rows(name, buffer, own[0]):
                    for owned, sequence in zip(own, sequences, strict=False):
                        first, stop = max(owned, start), min(start + len(rows), sequence.page_count)
                        if first < stop:
                            buffer.current[sequence.pages[first:stop]] = rows[first - start : stop - start]
        except BaseException:
            for sequence in sequences:
                self._steps.release(sequence)
            raise
        return sequences

    def _page_rows(self, name: str, buffer: StateBuffer, first: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """Pages from number `first` on at the latest, in pieces with the number of each one's first page."""
        files: list[SessionFile] = [self]
        while files[-1].first_page > first:
            before = files[-1]._before
            if before is None or before.settled_pages < files[-1].first_page:
                raise files[-1]._file.damaged("the file with the pages before its own has others")
            files.append(before)
        stops = [self.pages, *(file.first_page for file in files)]
        for file, stop in reversed([*zip(files, stops, strict=False)]):
            shape = (file.pages - file.first_page, *buffer.current.shape[1:])
            for row, rows in file._file.pieces(f"pages.{name}", buffer.current.dtype, shape):
                if (start := file.first_page + row) < stop:
                    yield start, rows[: stop - start]

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
