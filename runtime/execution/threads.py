"""How many threads a step runs on."""

from __future__ import annotations

import os
from pathlib import Path

from trigraph.models.checks import check

_THREAD_BYTES = 8 << 20  # of weights, for each thread more: steps of a small model are over before others are awake


def choose_threads(asked: int | None, weight_bytes: int | None = None) -> tuple[int, str | None]:
    """How many of the threads asked for are of use, and a note where that is fewer; None asks for the best number.

    That depends on the size of the model, where it is known. More threads than processors wait for each other: a step
    takes seconds in place of milliseconds.
    """
    if asked is None:
        most = default_threads()
        return most if weight_bytes is None else min(most, 1 + weight_bytes // _THREAD_BYTES), None
    check("threads", asked, int, lambda value: value >= 1, "1 or more")
    most = len(_processors()) or os.cpu_count() or 1
    if asked <= most:
        return asked, None
    return most, f"{asked} threads were asked for; {most} are used, one for each processor that is available"


def default_threads() -> int:
    """Physical cores that this process may run on: two threads of one core share its multipliers."""
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    try:
        cores = {Path(siblings.format(number)).read_text() for number in _processors()}
    except OSError:
        cores = set()
    return len(cores) or os.cpu_count() or 1


def _processors() -> set[int]:
    """Logical processors that this process may run on; none where the system does not tell."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
