"""Answers that begin from the state of an earlier prompt, kept in a file."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.session_file import SavedText, save_text
from trigraph.runtime.cache.snapshot import Snapshot
from trigraph.runtime.execution.steps import StepResult
from trigraph.runtime.generate import Generation, Options
from trigraph.runtime.state.state import Sequence

if TYPE_CHECKING:
    from trigraph.runtime.engine import Engine

_MOST_POINTS = 4
# A common beginning shorter than this by more than a point that is there is not worth a state of its own.
_LEAST_GAIN = 16


class CachedGeneration(Generation):
    """A generation that reuses what a file holds of its prompt, and leaves its own prompt and answer there.

    The recurrent state goes on from the points where it was saved, and from no other place: the end of a prompt, the
    end of its answer, and, from the second prompt on, the end of what it has in common with the one before. Kept are
    the shortest point and the newest ones.
    """

    def __init__(self, engine: Engine, prompt: list[int], options: Options, path: Path) -> None:
        """Raises TrigraphError when the file at `path` is no saved text, or one of another model."""
        super().__init__(engine, prompt, options, pause=self._take)
        if not path.absolute().parent.is_dir():
            raise TrigraphError(f"{path}: there is no folder {path.parent}; name a file in one that is there")
        self._path = path
        self._saved = SavedText(path, engine.model, engine.steps) if os.path.exists(path) else None
        if self._saved is not None and self._saved.messages:
            raise TrigraphError(f"{path}: holds a conversation; /load it in a chat, or name another file")
        self._points: list[Snapshot] = []

    def _run(self) -> Generator[None, None, None]:
        steps, prompt = self._engine.steps, self._prompt
        common = self._resume() if self._saved is not None else 0
        self._saved = None  # closes the file, which is about to be replaced
        if self._sequence is None:
            self._sequence = steps.new_sequence()
        self._reused = self._sequence.length
        learned = common if common >= self._reused + _LEAST_GAIN else 0
        self._pauses = frozenset({learned, len(prompt)})
        try:
            yield from super()._run()
        finally:
            try:
                self._save(self._sequence)
            finally:
                steps.release(self._sequence)

    def _resume(self) -> int:
        """Goes on from the longest point that begins the prompt; returns how long a beginning the texts share."""
        assert self._saved is not None
        saved, prompt = self._saved, self._prompt
        pairs = zip(saved.tokens, prompt, strict=False)
        common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(saved.tokens), len(prompt)))
        self._points = [saved.snapshot(i) for i, length in enumerate(saved.lengths) if length <= common]
        if self._points and self._points[-1].length == len(prompt) and self._points[-1].row is None:
            self._points.pop()  # leaves nothing to compute the next token from
        if self._points:
            (self._sequence,) = saved.resume(self._points[-1:])
            self._first = self._points[-1].row
        return common

    def _take(self, sequence: Sequence, row: StepResult) -> None:
        self._points.append(Snapshot.of(self._engine.steps.state, sequence, row.logits[0]))

    def _save(self, sequence: Sequence) -> None:
        if sequence.damaged or not sequence.length:
            return
        state = self._engine.steps.state
        if not self._points or self._points[-1].length < sequence.length:
            self._points.append(Snapshot.of(state, sequence))
        kept = self._points
        if len(kept) > _MOST_POINTS:
            kept = [kept[0], *kept[1 - _MOST_POINTS :]]
        save_text(self._path, self._engine.model, state, sequence, kept)
