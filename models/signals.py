"""Ctrl-C that waits for a moment when nothing is half done, and a SIGTERM that leaves nothing behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn


class _Waiting:
    """The handlers that a `deferred` block set aside, and the signals that came meanwhile."""

    def __init__(self) -> None:
        self.handlers: dict[int, Any] = {}
        self.caught: list[int] = []

    def catch(self, number: int, frame: FrameType | None) -> None:
        self.caught.append(number)


_waiting: _Waiting | None = None


@contextmanager
def deferred(*kinds: signal.Signals) -> Iterator[None]:
    """Signals of these kinds that come during the block are handled at its end; within another such block, at its end.

    Does nothing in other threads than the main one, where Python handles no signals.
    """
    global _waiting  # noqa: PLW0603 (handlers are the process's)
    if _waiting is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting = _Waiting()
    try:
        _waiting = waiting
        for kind in kinds:
            waiting.handlers[kind] = signal.signal(kind, waiting.catch) or signal.SIG_DFL
        yield
    finally:
        _waiting = None
        for number, handler in waiting.handlers.items():
            signal.signal(number, handler)
        for number in waiting.caught[:1]:
            signal.raise_signal(number)


@contextmanager
def unwinding_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, where it would end the process on the spot and leave a folder behind."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if not ours:  # only the main thread may set handlers, and a host's own one stays
        yield
        return
    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def poll_signals() -> None:
    """Handles a signal that waits, in the midst of a `deferred` block, where that leaves nothing half done."""
    if _waiting is not None and threading.current_thread() is threading.main_thread():
        while _waiting.caught:
            number = _waiting.caught.pop(0)
            handler: Callable[[int, FrameType | None], Any] | int = _waiting.handlers[number]
            if callable(handler):
                handler(number, None)
