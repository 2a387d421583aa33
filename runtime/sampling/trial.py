"""Grammars of strangers are compiled in another process first: one that overflows the stack ends that process alone.

A trial that takes little of the processor's time waits for no other kind: one that takes more is ended, and begun anew
among its like.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.limited.process import LimitedProcess
from trigraph.runtime.sampling.semaphore import Semaphore

STACK = 8 << 20
"""Bytes of stack that a trial may take; who compiles the same grammar later has twice as much."""
QUICK_SECONDS, SECONDS = 0.1, 5.0
"""The seconds of processor time that most trials take, and that they may take."""

_PROGRAM = Path(__file__).with_name("trial_process.py")
_MAX_MEMORY = 1 << 30  # bytes of the process
_MAX_STARTING_SECONDS = 60.0
_LARGE = 32 << 10  # characters, from which on a trial is slow
_MOST_KNOWN = 4096
_OVERDUE = 20  # seconds for each of the processor's, where a loaded machine does not say what was taken


class Verdict(NamedTuple):
    """Whether a grammar can be compiled."""

    message: str | None
    """Why not, as llguidance says it, if so."""
    seconds: float = 0.0
    """The seconds of processor time that it took."""
    tried: bool = True
    """Whether the trial came to an end of its own."""


class Trials:
    """The processes, which start when there is something to try, and what is known of grammars."""

    def __init__(self, limits: Mapping[str, Any]) -> None:
        """`limits`: those of llguidance."""
        self._quick = _Lane(QUICK_SECONDS, 0, limits)
        self._slow = _Lane(SECONDS, 5, limits)
        self._known: dict[bytes, Verdict] = {}  # by the hash of the grammar
        self._learning = threading.Lock()

    def verdict(self, grammar: str, *, whole: bool = True) -> Verdict:
        """What became of a grammar. Not `whole`: whether it is well-formed and no more, for a part of another one.

        Raises BusyError.
        """
        try:
            key = sha256(grammar.encode() + bytes([whole])).digest()
        except UnicodeEncodeError as error:
            return Verdict(f"it has half of a character, {quote(grammar[error.start])}; write the whole one")
        if (known := self._known.get(key)) is not None:
            return known
        request = {"grammar": grammar, "whole": whole}
        for lane in (self._quick, self._slow)[len(grammar) > _LARGE :]:
            with lane.semaphore.entered(len(grammar)):
                if (known := self._known.get(key)) is not None:  # by somebody else, while this one waited
                    return known
                if (verdict := lane.tried(request)) is not None:
                    return self._learned(key, verdict)
        return self._learned(
            key, Verdict(f"compiling it takes more than {SECONDS:g} seconds; make it simpler", SECONDS, False)
        )

    def _learned(self, key: bytes, verdict: Verdict) -> Verdict:
        with self._learning:
            if len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[key] = verdict
        return verdict


@dataclass
class _Lane:
    """Trials that take up to so many seconds."""

    seconds: float
    niceness: int
    limits: Mapping[str, Any]
    semaphore: Semaphore = field(default_factory=lambda: Semaphore(2))
    _idle: list[LimitedProcess] = field(default_factory=list)

    def tried(self, request: Mapping[str, Any]) -> Verdict | None:
        """What became of a grammar; None when it took too long."""
        process = self._process()
        line = json.dumps({**request, "seconds": self.seconds}).encode() + b"\n"
        response, _ = process.ask(line, self.seconds * _OVERDUE)
        if "seconds" in response:
            self._idle.append(process)
            return Verdict(response["message"], response["seconds"])
        process.end()
        if response.get("late"):
            return None
        return Verdict("it is nested too deeply or too large to compile; make it smaller", self.seconds, False)

    def _process(self) -> LimitedProcess:
        while self._idle:
            if not (process := self._idle.pop()).ended:
                return process
        try:
            process = LimitedProcess(_PROGRAM, _MAX_MEMORY)
        except OSError as error:
            raise TrigraphError(
                f"the grammar cannot be compiled: {sys.executable} does not start ({error.strerror})"
            ) from error
        settings = {"limits": dict(self.limits), "niceness": self.niceness, "stack": STACK}
        response, _ = process.ask(json.dumps(settings).encode() + b"\n", _MAX_STARTING_SECONDS)
        if "ready" not in response:
            process.end()
            raise TrigraphError(
                f"the grammar cannot be compiled: {sys.executable} does not run llguidance ({response.get('error')})"
            )
        return process
