"""What is left of memory, for the error that says that it is not enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from trigraph.models.errors import TrigraphError

_ADDRESS_SPACE = 1 << 47  # bytes that a process of the usual systems can address
# How libraries that we call word it.
_SIGNS = ("bad_alloc", "bad allocation", "Failed to allocate memory", "Cannot allocate memory")


class RetryError(TrigraphError):
    """A step failed for want of memory that is there now: what it was of may be computed again."""


class _Group(NamedTuple):
    """Where a version of control groups says what."""

    controller: str
    mount: str
    limit: str
    used: str
    reclaimable: str


_GROUPS = (
    _Group("", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    _Group("memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_memory() -> int | None:
    """Bytes that this process may take, by the system's memory, its container's and its own limit; None if unknown."""
    known = (_available(), left_of_container(), _left_of_limit())
    return min((size for size in known if size is not None), default=None)


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def left_of_container(root: Path = Path("/")) -> int | None:
    """What the control groups of this process leave, with what they would give up of files they have read."""
    left = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for kind in _GROUPS:
            if kind.controller not in controllers.split(","):
                continue
            mount = root / kind.mount
            own = mount / path.lstrip("/")
            # In a container, the group may be mounted in the place of all.
            for folder in {own, *own.parents[: len(own.parts) - len(mount.parts)], mount}:
                try:
                    most, used = (int((folder / name).read_text()) for name in (kind.limit, kind.used))
                    counts = dict(item.split() for item in (folder / "memory.stat").read_text().splitlines())
                    left.append(max(0, most - used + int(counts[kind.reclaimable])))
                except (OSError, ValueError, KeyError):  # no limit
                    continue
    return min(left, default=None)


def _left_of_limit() -> int | None:
    """What a limit of address space leaves."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        return None
    return max(0, limit - pages * resource.getpagesize())


def is_shortage(error: Exception) -> bool:
    """Whether an error, of Python or of a library, says that memory could not be had."""
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in _SIGNS)


@contextmanager
def explained_shortage(what: str, needed: int, remedy: str) -> Iterator[None]:
    """Turns a failed allocation of the block into a TrigraphError: `what` needs `needed` bytes, so many are free.

    Does not begin when a limit of this process leaves less: some libraries end the process when they cannot allocate.
    """

    def shortage() -> TrigraphError:
        free = free_memory()
        free_text = "memory is not enough" if free is None else f"{free / 1e6:,.0f} MB are free"
        return TrigraphError(f"{what} needs {needed / 1e6:,.0f} MB, and {free_text}; {remedy}")

    left = _left_of_limit()
    if needed > (_ADDRESS_SPACE if left is None else left):
        raise shortage()
    try:
        yield
    except Exception as error:
        if not is_shortage(error):
            raise
        raise shortage() from error
