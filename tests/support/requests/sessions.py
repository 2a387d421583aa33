"""Saves sequences to session files, and resumes them."""

from pathlib import Path

from trigraph.runtime.cache.checkpoint import Checkpoint
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.cache.session_file import SessionFile, save_session
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.state.sequence import Sequence

MODEL = ModelIdentity("a model", "12345678" * 8, 1, "f16", "int8", True)


def save(path: Path, steps: Steps, *sequences: Sequence, model: ModelIdentity = MODEL) -> None:
    """Saves the last sequence, with a checkpoint for each."""
    checkpoints = [Checkpoint.of(steps.state, sequence) for sequence in sequences]
    save_session(path, model, steps.state, sequences[-1], checkpoints)


def resume(path: Path, steps: Steps, model: ModelIdentity = MODEL) -> list[Sequence]:
    """The sequences of all checkpoints."""
    saved = SessionFile(path, model, steps)
    return saved.resume([saved.checkpoint(i) for i in range(len(saved.lengths))])
