"""Requests on their way from one engine to another.

A token's bits depend on the tokens before it, its random number on seed and position: so prompt, options and the tokens
so far are all that another engine needs. State is the same bytes on all devices, and saves it the computing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.checkpoint import Checkpoint
from trigraph.runtime.cache.prefix_cache import PrefixCache
from trigraph.runtime.cache.session_file import SessionFile, save_session
from trigraph.runtime.cache.tensor_file import reading_seconds
from trigraph.runtime.images.prompt import ImagePrompt
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.options import Options
from trigraph.runtime.requests.request import Request
from trigraph.runtime.scheduler.driver import Driver
from trigraph.runtime.scheduler.model import Model

_FILE = "moved.session"


@dataclass(frozen=True)
class Detached:
    """A request that an engine has begun, for another one; it can be pickled."""

    prompt: list[int] | ImagePrompt
    options: Options
    completed: tuple[int, ...]
    """The tokens so far."""
    priority: int
    seconds_left: float | None
    """Until it ends as it is."""
    state: bytes | None
    """A session file with the state of its tokens, or of their beginning; None: it is computed again."""

    @classmethod
    def of(cls, driver: Driver, model: Model, handle: Handle, *, ends: bool = False) -> Detached:
        """What there is of it between two rounds; `ends`: it ends with that. For the engine's thread.

        Raises TrigraphError when it is done, or another engine's.
        """
        if (request := handle.request) is None:
            raise TrigraphError("the completion is done: there is nothing to move")
        if handle.runner is not driver:
            raise TrigraphError("the request is another engine's; detach it there")
        left = None if request.deadline is None else max(0.0, request.deadline - time.monotonic())
        prompt, state = handle.shown or handle.prompt, _packed(model, request)
        if ends:
            driver.scheduler.cancel(request, "cancelled")
        return cls(prompt, handle.options, tuple(handle.ids), request.priority, left, state)


def unpack(state: bytes, model: Model, cache: PrefixCache) -> None:
    """Takes such a state into the prefix cache; for the engine's thread.

    Raises TrigraphError when it is of another model, or damaged.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / _FILE
        path.write_bytes(state)
        cache.load(SessionFile(path, model.identity, model.steps))


def _packed(model: Model, request: Request) -> bytes | None:
    """The state of a request, if that is worth more than computing it again."""
    sequence, state = request.sequence, model.steps.state
    if sequence is None or sequence.damaged or not sequence.length:
        return None
    size = state.slot_bytes + state.page_bytes * state.pages_of(sequence.length)
    if model.prefill_speed.seconds(sequence.length) < 2 * reading_seconds(size):  # it is written, too
        return None
    with TemporaryDirectory() as folder:
        path = Path(folder) / _FILE
        save_session(path, model.identity, state, sequence, [Checkpoint.of(state, sequence)])
        return path.read_bytes()
