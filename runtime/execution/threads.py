"""How many threads a step runs on."""

from __future__ import annotations

import os
from pathlib import Path

from trigraph.models.checks import check


def choose_threads(asked: int | None) -> tuple[int, str | None]:
    """How many of the threads asked for are of use, and a note where that is fewer; None asks for the best number.

    More threads than processors wait for each other: a step takes seconds in place of milliseconds.
    """
    if asked is None:
        return default_threads(), None
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
