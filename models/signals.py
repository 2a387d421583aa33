"""Ctrl-C that waits for a moment when nothing is half done, and a SIGTERM that leaves nothing behind."""

from __future__ import annotations

import signal
import threading

# What signal.signal wraps in conversions of enums, which take as long as a layer of a small model.
from _signal import signal as set_handler  # type: ignore[import-not-found]
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

_DEFAULT = int(signal.SIG_DFL)  # which knows enums no more than None


class deferred:  # noqa: N801 (read as a statement: with deferred(signal.SIGINT))
    """Signals of these kinds that come during the block are handled at its end; within another such block, at its end.

    Does nothing in other threads than the main one, where Python handles no signals.
    """

    def __init__(self, *kinds: signal.Signals) -> None:
        self._kinds = kinds
        self.handlers: dict[int, Any] = {}
        """Those that the block has set aside."""
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
