"""Completions that begin from the state of an earlier prompt, kept in a file."""

from __future__ import annotations

import os
from pathlib import Path

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.cache.prefix import Resumed, common_prefix
from trigraph.runtime.cache.session_file import SavedText, save_text
from trigraph.runtime.cache.snapshot import Snapshot
from trigraph.runtime.execution.steps import StepResult, Steps
from trigraph.runtime.state.sequence import Sequence

_MOST_POINTS = 4
# A common beginning shorter than this by more than a point that is there is not worth a state of its own.
_LEAST_GAIN = 16


class PromptCache:
    """What a file holds of one request's prompt, and will hold of its prompt and completion; see Prefix.

    The recurrent state goes on from the points where it was saved, and from no other place: the end of a prompt, the
    end of its completion, and, from the second prompt on, the end of what it has in common with the one before. Kept
    are the shortest point and the newest ones.
    """

    def __init__(self, path: Path, model: ModelIdentity, steps: Steps) -> None:
        """Raises TrigraphError when the file at `path` is no session file, or one of another model."""
        if not path.absolute().parent.is_dir():
            raise TrigraphError(f"{path}: there is no folder {path.parent}; name a file in one that is there")
        self._path, self._model, self._steps = path, model, steps
        self._saved = SavedText(path, model, steps) if os.path.exists(path) else None
        if self._saved is not None and self._saved.messages:
            raise TrigraphError(f"{path}: holds a conversation; /load it in a chat, or name another file")
        self._points: list[Snapshot] = []

    def resume(self, prompt: list[int]) -> Resumed:
        """See Prefix: goes on from the longest point that begins the prompt."""
        saved, self._saved = self._saved, None  # the file is closed at the end: it is about to be replaced
        if saved is None:
            return Resumed(self._steps.new_sequence(), checkpoints=frozenset({len(prompt)}))
        common = common_prefix(saved.tokens, prompt)
        self._points = [saved.snapshot(i) for i, length in enumerate(saved.lengths) if length <= common]
        if self._points and self._points[-1].length == len(prompt) and self._points[-1].row is None:
            self._points.pop()  # leaves nothing to compute the next token from
        if self._points:
            (sequence,) = saved.resume(self._points[-1:])
            row = self._points[-1].row
        else:
            sequence, row = self._steps.new_sequence(), None
        learned = {common} if common >= sequence.length + _LEAST_GAIN else set()
        return Resumed(sequence, row, frozenset({len(prompt), *learned}))

    def checkpoint(self, sequence: Sequence, row: StepResult) -> None:
        """See Prefix."""
        self._points.append(Snapshot.of(self._steps.state, sequence, row.logits[0]))

    def finish(self, sequence: Sequence) -> None:
        """See Prefix: replaces the file. Raises TrigraphError when it cannot be written."""
        try:
            self._save(sequence)
        finally:
            self._steps.release(sequence)

    def _save(self, sequence: Sequence) -> None:
        if sequence.damaged or not sequence.length:
            return
        state = self._steps.state
        if not self._points or self._points[-1].length < sequence.length:
            self._points.append(Snapshot.of(state, sequence))
        kept = self._points
        if len(kept) > _MOST_POINTS:
            kept = [kept[0], *kept[1 - _MOST_POINTS :]]
        save_text(self._path, self._model, state, sequence, kept)
