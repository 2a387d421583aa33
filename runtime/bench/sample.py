"""Timed calls, and what was called."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Sample(NamedTuple):
    """One timed call."""

    seconds: float
    read_gb_s: float | None = None
    """Read bandwidth just before, for calls that have a roofline."""


@dataclass(frozen=True)
class Case:
    """What was called, always with tokens of the same number and in the same place."""

    engine: str
    name: str
    """"prefill", "decode", "verify", "draft", "block" or "generate"."""
    k: int
    """Tokens of each sequence: in the step, or of the whole prefill or completion."""
    context: int
    """Positions before the call, of each sequence."""
    sequences: int = 1


@dataclass(frozen=True)
class Timing:
    """A case and its samples."""

    case: Case
    samples: list[Sample]
    note: str = ""


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
