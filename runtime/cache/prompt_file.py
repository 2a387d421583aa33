"""A session file that a completion begins from, and leaves its state in."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.cache.prefix_cache import PrefixCache
from trigraph.runtime.cache.session_file import SessionFile
from trigraph.runtime.cache.tensor_file import check_tensors_writable
from trigraph.runtime.execution.steps import Steps


def open_prompt_file(
    path: Path, identity: ModelIdentity, steps: Steps, cache: PrefixCache, call: Callable[[Callable[[], None]], None]
) -> Callable[[list[int]], None]:
    """Takes the checkpoints of `--prompt-cache`'s file, if it exists, into the prefix cache.

    What it returns replaces the file by the checkpoints of the beginnings of tokens, and raises TrigraphError when it
    cannot. `call`: runs a function where the cache may be touched. Raises TrigraphError when the file at `path` cannot
    be written, or is no session file of this model.
    """
    if not path.absolute().parent.is_dir():
        raise TrigraphError(f"{path}: the folder {path.parent} does not exist; create it, or name another file")
    saved = SessionFile(path, identity, steps) if os.path.exists(path) else None
    if saved is not None and saved.turn.messages:
        raise TrigraphError(f"{path}: holds a conversation; /load it in a chat, or name another file")
    check_tensors_writable(path)  # before a completion is computed
    if saved is not None:
        call(partial(cache.load, saved))
    return partial(cache.save, path, identity)
