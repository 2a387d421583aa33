"""What steps cost on this machine, as far as they were timed."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from trigraph.runtime.decoding.draft_length import Round

_RECENT = 8  # times of a step that count; the least of them, for a busy machine or a page fault only ever adds
_ROW_COST = 0.15  # of a plain step, for one row more in a verify that was never timed; hopeful, so that it is tried
_FIRST_PIECE = 32  # tokens of a prompt in one step, before any was timed


class Shape(NamedTuple):
    """What the time of a verify depends on."""

    rows: int
    """Tokens of a sequence."""
    sequences: int = 1


class Costs:
    """Measured seconds of steps. They belong to a model on a machine: requests share them."""

    def __init__(self) -> None:
        self._verifies: dict[Shape, deque[float]] = {}
        self._drafts: deque[float] = deque(maxlen=_RECENT)
        self._seen: set[Shape] = set()
        self._token: deque[float] = deque(maxlen=_RECENT)

    def most_rows(self, sequences: int = 1) -> int:
        """The most rows of a verify of so many sequences that was timed; 0 when none was."""
        return max(self._timed(sequences), default=0)

    def observe(self, finished: Round, draft_steps: int) -> None:
        """Takes in a round with so many draft steps. The first of each shape does not count: it allocates."""
        shape = Shape(finished.drafted + 1, finished.sequences)
        if shape not in self._seen:
            self._seen.add(shape)
            return
        seconds = finished.seconds - finished.draft_seconds
        self._verifies.setdefault(shape, deque(maxlen=_RECENT)).append(seconds)
        if draft_steps:
            self._drafts.append(finished.draft_seconds / draft_steps)

    @property
    def draft(self) -> float | None:
        """Seconds of a draft step; None before one was timed."""
        return min(self._drafts, default=None)

    def verify(self, rows: int, sequences: int = 1) -> float | None:
        """Seconds of a verify, timed or guessed from the nearest one of as many sequences; None before one was."""
        timed = self._timed(sequences)
        if not timed:
            return None
        nearest = min(timed, key=lambda known: (abs(known - rows), known))
        known = min(self._verifies[Shape(nearest, sequences)])
        plain = known / (1 + _ROW_COST * (nearest - 1))
        return known + _ROW_COST * plain * (rows - nearest)

    def _timed(self, sequences: int) -> list[int]:
        return [shape.rows for shape in self._verifies if shape.sequences == sequences]

    def observe_prefill(self, tokens: int, seconds: float) -> None:
        """Takes in a prefill of `tokens` tokens."""
        self._token.append(seconds / tokens)

    def prefill_tokens(self, seconds: float) -> int:
        """The most tokens whose prefill takes no longer than `seconds`; at least 1."""
        return max(1, int(seconds / min(self._token))) if self._token else _FIRST_PIECE
