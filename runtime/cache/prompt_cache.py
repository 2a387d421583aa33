"""Completions that begin from the state of an earlier prompt, kept in a file."""

from __future__ import annotations

import os
from pathlib import Path

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.checkpoint import Checkpoint
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.cache.prefix import Resumed, common_prefix
from trigraph.runtime.cache.session_file import SessionFile, save_session
from trigraph.runtime.cache.tensor_file import check_tensors_writable
from trigraph.runtime.execution.steps import StepResult, Steps
from trigraph.runtime.state.sequence import Sequence

_MAX_CHECKPOINTS = 4
# Tokens that a common prefix must have more than its longest checkpoint to get one of its own.
_MIN_GAIN = 16


class PromptCache:
    """The session file that a request takes its prompt's prefix from and leaves prompt and completion in; see Prefix.

    Recurrent state resumes at checkpoints alone. They are at the end of a prompt, at the end of its completion, and,
    from the second prompt on, at the end of the prefix that it shares with the one before. Kept are the shortest
    checkpoint and the newest ones.
    """

    def __init__(self, path: Path, model: ModelIdentity, steps: Steps) -> None:
        """Raises TrigraphError when the file at `path` cannot be written, or is no session file of this model."""
        if not path.absolute().parent.is_dir():
            raise TrigraphError(f"{path}: there is no folder {path.parent}; name a file in one that is there")
        self._path, self._model, self._steps = path, model, steps
        self._saved = SessionFile(path, model, steps) if os.path.exists(path) else None
        if self._saved is not None and self._saved.messages:
            raise TrigraphError(f"{path}: holds a conversation; /load it in a chat, or name another file")
        check_tensors_writable(path)  # before a completion is computed
        self._checkpoints: list[Checkpoint] = []

    def resume(self, prompt: list[int]) -> Resumed:
        """See Prefix: resumes from the longest checkpoint within the prompt."""
        saved, self._saved = self._saved, None  # closed when this returns: the file will be replaced
        if saved is None:
            return Resumed(self._steps.new_sequence(), checkpoints=frozenset({len(prompt)}))
        common = common_prefix(saved.tokens, prompt)
        self._checkpoints = [saved.checkpoint(i) for i, length in enumerate(saved.lengths) if length <= common]
        if self._checkpoints and self._checkpoints[-1].length == len(prompt) and self._checkpoints[-1].row is None:
            self._checkpoints.pop()  # leaves nothing to compute the next token from
        if self._checkpoints:
            (sequence,) = saved.resume(self._checkpoints[-1:])
            row = self._checkpoints[-1].row
        else:
            sequence, row = self._steps.new_sequence(), None
        learned = {common} if common >= sequence.length + _MIN_GAIN else set()
        return Resumed(sequence, row, frozenset({len(prompt), *learned}))

    def checkpoint(self, sequence: Sequence, row: StepResult) -> None:
        """See Prefix."""
        self._checkpoints.append(Checkpoint.of(self._steps.state, sequence, row.logits[0]))

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
        if not self._checkpoints or self._checkpoints[-1].length < sequence.length:
            self._checkpoints.append(Checkpoint.of(state, sequence))
        kept = self._checkpoints
        if len(kept) > _MAX_CHECKPOINTS:
            kept = [kept[0], *kept[1 - _MAX_CHECKPOINTS :]]
        save_session(self._path, self._model, state, sequence, kept)
