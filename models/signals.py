"""Ctrl-C that waits for a moment when nothing is half done, and signals that leave nothing behind when they end us."""

from __future__ import annotations

import signal
import threading

# What signal.signal wraps in conversions of enums, which take as long as a layer of a small model.
from _signal import signal as set_handler  # type: ignore[import-not-found]
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a program which has nothing else to do with them: Windows knows no SIGHUP."""
_DEFAULT = int(signal.SIG_DFL)  # which knows enums no more than None


class deferred:  # noqa: N801 (read as a statement: with deferred(signal.SIGINT))
    """Signals of these kinds that come during the block are handled at its end; within another such block, at its end.

    Does nothing in other threads than the main one, where Python handles no signals.
    """

    def __init__(self, *kinds: signal.Signals) -> None:
        self._kinds = kinds
        self.handlers: dict[int, Any] = {}
        """The handlers that the block has set aside, by signal."""
        self.caught: list[int] = []
        """Signals that came meanwhile."""

    def __enter__(self) -> None:
        global _outermost  # noqa: PLW0603 (handlers are the process's)
        if _outermost is not None or threading.get_ident() != threading.main_thread().ident:
            return
        _outermost = self
        try:
            for kind in self._kinds:
                self.handlers[kind] = set_handler(kind, self._catch) or _DEFAULT
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *details: object) -> None:
        global _outermost  # noqa: PLW0603
        if _outermost is not self:
            return
        _outermost = None
        for number, handler in self.handlers.items():
            set_handler(number, handler)
        for number in self.caught[:1]:
            signal.raise_signal(number)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.caught.append(number)


_outermost: deferred | None = None
"""The block that holds signals up now."""


@contextmanager
def unwinding() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, where they would end the process on the spot and leave a folder behind.

    A host's own handler stays, and so does a signal that is ignored.
    """

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # no other one may set handlers
        yield
        return
    ours = [kind for kind in ENDING if signal.getsignal(kind) == signal.SIG_DFL]
    for kind in ours:
        signal.signal(kind, leave)
    try:
        yield
    finally:
        for kind in ours:
            signal.signal(kind, signal.SIG_DFL)


def interrupt_on_hangup() -> None:
    """Has a terminal that closes do what Ctrl-C does in it; not where either of them is ignored, as under nohup."""
    if hasattr(signal, "SIGHUP") and signal.SIG_IGN not in map(signal.getsignal, (signal.SIGHUP, signal.SIGINT)):
        signal.signal(signal.SIGHUP, lambda number, frame: signal.raise_signal(signal.SIGINT))
