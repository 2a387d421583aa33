"""Log-probabilities in a file, as llama.cpp's `--save-all-logits` and `--kl-divergence-base` write and read them.

Behind eight bytes of name, little-endian: the tokens of a window, the size of the vocabulary, and the number of windows
(int32); the tokens of all windows (int32); then a row for each counted token, those from the middle of each window to
the last but one. A row is two floats, a step and the least log-probability, and for each token of the vocabulary a
number of steps above it (uint16), filled up to an even count. Tokens that are e^16 times less likely than the likeliest
one, or less still, have no steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError, file_errors, quote
from trigraph.models.staging import staged_file
from trigraph.runtime.requests.logprobs import log_of_sum

NAME = b"_logits_"
FLOOR = -16.0
"""llama.cpp leaves tokens of this log-probability or less out of a divergence."""

_HEADER = len(NAME) + 12
_STEPS = 65535


@dataclass(frozen=True)
class _Layout:
    context: int
    vocabulary: int
    windows: int

    @property
    def row(self) -> int:
        """Bytes of a row."""
        return 8 + 2 * (self.vocabulary + self.vocabulary % 2)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.offset(self.windows, self.context // 2)

    def offset(self, window: int, place: int) -> int:
        """Where the row behind the token at `place` of a window is."""
        tokens, first = 4 * self.windows * self.context, self.context // 2
        return _HEADER + tokens + (window * (self.context - 1 - first) + place - first) * self.row


class SavedLogits:
    """A file to compare with. Nothing is read of its rows before they are asked for."""

    def __init__(self, path: Path) -> None:
        """Raises TrigraphError for a file that cannot be read, is cut off or longer, or has impossible numbers."""
        self._path = path
        with self._opened() as file:
            name, numbers = file.read(len(NAME)), file.read(_HEADER - len(NAME))
            if name != NAME:
                raise self._error(
                    f"begins with {quote(name)}; saved logits begin with {quote(NAME)}, and a model with b'GGUF'"
                )
            if len(numbers) < _HEADER - len(NAME):
                raise self._error("is cut off in its header")
            self._layout = layout = _Layout(*np.frombuffer(numbers, "<i4").tolist())
            for what, value, least in (
                ("windows", layout.windows, 1), ("tokens a window", layout.context, 3),
                ("tokens in the vocabulary", layout.vocabulary, 1),
            ):  # fmt: skip
                if value < least:
                    raise self._error(f"has {value} {what}; {least} is the least")
            if (size := path.stat().st_size) != layout.size:
                raise self._error(
                    f"has {size} bytes; its {layout.windows} windows of {layout.context} tokens, with a vocabulary of "
                    f"{layout.vocabulary}, take {layout.size}: make the file again"
                )
            tokens = np.frombuffer(file.read(4 * layout.windows * layout.context), "<i4")
        wrong = tokens[(tokens < 0) | (tokens >= layout.vocabulary)]
        if len(wrong):
            raise self._error(f"has the token {wrong[0]}; its vocabulary ends at {layout.vocabulary - 1}")
        self.tokens: list[list[int]] = tokens.reshape(layout.windows, layout.context).tolist()
        """The tokens of each window."""

    @property
    def context(self) -> int:
        """Tokens in a window."""
        return self._layout.context

    def check(self, vocabulary: int) -> None:
        """Raises TrigraphError for a model whose vocabulary has another size."""
        if self._layout.vocabulary != vocabulary:
            raise self._error(
                f"has logits of {self._layout.vocabulary} tokens, but the model has {vocabulary}; compare models with "
                "the same tokenizer"
            )

    def row(self, window: int, place: int) -> NDArray[np.float64]:
        """Log-probabilities [vocabulary] behind the token at `place` of a window, from its middle on."""
        with self._opened() as file:
            file.seek(self._layout.offset(window, place))
            data = file.read(self._layout.row)
        if len(data) < self._layout.row:
            raise self._error("became shorter while it was read")
        step, least = (float(value) for value in np.frombuffer(data[:8], "<f4"))
        if not (0 <= step < math.inf and -math.inf < least and least + step * _STEPS < 0.01):
            raise self._error(
                f"has no log-probabilities behind token {place} of window {window}: {step:g} a step from {least:g}"
            )
        steps: NDArray[np.float64] = np.frombuffer(data[8:], "<u2")[: self._layout.vocabulary].astype(np.float64)
        return least + step * steps

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        with file_errors(self._path), self._path.open("rb") as file:
            yield file

    def _error(self, what: str) -> TrigraphError:
        return TrigraphError(f"{self._path}: {what}")


@dataclass(frozen=True)
class LogitsWriter:
    """A file that is being written."""

    _file: BinaryIO
    _layout: _Layout

    def write(self, window: int, place: int, logits: NDArray[np.float32]) -> None:
        """Adds the logits [vocabulary] behind the token at `place` of a window, in any order."""
        total, largest = log_of_sum(logits), float(logits.max())
        if math.isnan(total):
            raise TrigraphError(f"the logits behind token {place} of window {window} are not finite; nothing is saved")
        least = max(float(logits.min()), largest + FLOOR)
        step = np.float32((largest - least) / _STEPS)
        steps = np.zeros((self._layout.row - 8) // 2, "<u2")
        if step:
            codes = np.rint((logits.astype(np.float64) - least) / np.float64(step))
            steps[: len(logits)] = np.clip(codes, 0, _STEPS)
        self._file.seek(self._layout.offset(window, place))
        self._file.write(np.array([step, least - total], "<f4").tobytes() + steps.tobytes())


@contextmanager
def logits_writer(path: Path, windows: Sequence[list[int]], vocabulary: int) -> Iterator[LogitsWriter]:
    """A file with the tokens of `windows`, which appears when the block ends well. Raises TrigraphError."""
    layout = _Layout(len(windows[0]), vocabulary, len(windows))
    with file_errors(path, "written"), staged_file(path) as stage, stage.open("wb") as file:
        file.write(NAME + np.array([layout.context, vocabulary, layout.windows], "<i4").tobytes())
        file.write(np.array(windows, "<i4").tobytes())
        yield LogitsWriter(file, layout)
