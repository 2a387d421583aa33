"""What is left of memory, for the error that says that it is not enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trigraph.models.errors import TrigraphError

# How libraries that we call word it.
_SIGNS = ("bad_alloc", "bad allocation", "Failed to allocate memory", "Cannot allocate memory")


def free_memory() -> int | None:
    """Bytes that this process may still take, by the system's memory and its own limit; None if nothing tells."""
    bounds = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                bounds.append(int(line.split()[1]) * 1024)
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            bounds.append(max(0, limit - used))
    except (OSError, ImportError):
        pass
    return min(bounds, default=None)


def is_shortage(error: Exception) -> bool:
    """Whether an error, of Python or of a library, says that memory could not be had."""
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in _SIGNS)


@contextmanager
def explained_shortage(what: str, needed: int, remedy: str) -> Iterator[None]:
    """Turns a failed allocation of the block into a TrigraphError: `what` needs `needed` bytes, so many are free."""
    try:
        yield
    except Exception as error:
        if not is_shortage(error):
            raise
        free = free_memory()
        found = "memory is not enough" if free is None else f"{free / 1e6:,.0f} MB are free"
        raise TrigraphError(f"{what} needs {needed / 1e6:,.0f} MB, and {found}; {remedy}") from error
