"""What the host writes into the inputs of a step."""

from __future__ import annotations

from collections import abc
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.device.exchange import Array
from trigraph.runtime.state.sequence import Sequence

Tokens = abc.Sequence[int]
Sequences = abc.Sequence[Sequence]
Rows = abc.Sequence[NDArray[np.float32]]
ImageRows = NDArray[np.float32] | None
"""The rows of the image tokens of a piece of a prompt, in order: [count, hidden]."""


def check_ids(tokens: Tokens, vocab: int, rows: ImageRows = None) -> None:
    """Raises TrigraphError unless the tokens are of a vocabulary, but for those of images, which have a row each."""
    if rows is not None:
        text = [token for token in tokens if token >= 0]
        if (shown := len(tokens) - len(text)) != len(rows):
            raise TrigraphError(f"{shown} tokens are of images, and {len(rows)} rows are given for them")
        if not (tokens := text):
            return
    if set(map(type, tokens)) != {int} and np.asarray(tokens).dtype.kind not in "iu":
        raise TrigraphError(f"token ids must be whole numbers, found {quote(tokens)}")
    if min(tokens) < 0 or max(tokens) >= vocab:
        raise TrigraphError(f"token ids must be from 0 to {vocab - 1}, found {min(tokens)} to {max(tokens)}")


def lengths_after(sequences: Sequences, tokens: abc.Sequence[Tokens]) -> list[int]:
    """Lengths of the sequences with these tokens."""
    return [sequence.length + len(new) for sequence, new in zip(sequences, tokens, strict=True)]


def next_rows(rows: abc.Iterator[NDArray[np.float32]], piece: Tokens) -> abc.Iterator[NDArray[np.float32]]:
    """The rows of a piece's image tokens."""
    return islice(rows, sum(token < 0 for token in piece))


def fill_tables(inputs: abc.Mapping[str, Array], sequences: Sequences) -> None:
    """Writes where the sequences' positions lie: in pages, and in the rings of a block drafter."""
    for i, sequence in enumerate(sequences):
        inputs["page_table"][i] = sequence.pages
        if "ring_table" in inputs:
            inputs["ring_table"][i] = sequence.slot_to_write


def fill_images(inputs: abc.Mapping[str, Array], shown: Rows) -> None:
    """The rows of image tokens, and their places; other tokens' embeddings stand there until they are replaced."""
    if not shown:
        return
    if "image_rows" not in inputs:
        raise TrigraphError("the package has no vision tower: its prefill takes no images")
    ids = inputs["input_ids"]
    places = np.flatnonzero(ids < 0)
    inputs["image_places"][:, 0], ids[places] = places, 0
    np.stack(shown, out=inputs["image_rows"])


def fill_positions(
    inputs: abc.Mapping[str, Array], sequences: Sequences, tokens: abc.Sequence[Tokens], starts: abc.Sequence[int]
) -> None:
    """Positions, in graphs for images; `starts` are the places of the sequences' first tokens."""
    if "positions" not in inputs:
        return
    positions, last, row = inputs["positions"], inputs.get("last_positions"), 0
    for i, (sequence, new, start) in enumerate(zip(sequences, tokens, starts, strict=True)):
        found = sequence.positions(start, start + len(new))
        positions[:, row : row + len(new)] = found
        if last is not None:
            last[:, i] = found[:, -1]
        row += len(new)


def fill_previous(inputs: abc.Mapping[str, Array], sequences: Sequences, start: int) -> None:
    """The committed tokens before a step's, in graphs with n-grams; `start` stands before the start of a text."""
    if "previous_ids" not in inputs:
        return
    previous = inputs["previous_ids"]
    count = previous.shape[1]
    for row, sequence in zip(previous, sequences, strict=True):
        last = sequence.tokens[-count:]
        row[:] = [start] * (count - len(last)) + last


def fill_tokens(inputs: abc.Mapping[str, Array], tokens: abc.Sequence[Tokens]) -> None:
    ids, cu_seqlens = inputs["input_ids"], inputs["cu_seqlens"]
    row = cu_seqlens[0] = 0
    for i, new in enumerate(tokens, 1):
        if len(new) > 8:  # fewer are written sooner one by one
            ids[row : row + len(new)] = new
            row += len(new)
        else:
            for token in new:
                ids[row] = token
                row += 1
        cu_seqlens[i] = row
