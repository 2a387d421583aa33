"""Starts a program under limits: `python -P start.py PROGRAM BYTES` calls the program's `main(BYTES)`.

It imports nothing else of the project, so it starts quickly. What the program imports comes before the limits.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location


def limit(memory: int) -> None:
    """Limits memory, in bytes, and forbids writing files, where the system can."""
    try:
        import resource
    except ImportError:
        return
    for kind, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        try:
            resource.setrlimit(kind, (most, most))
        except (ValueError, OSError):  # not on every system
            continue


def main(path: str, memory: int) -> None:
    """Runs the program."""
    spec = spec_from_file_location("program", path)
    assert spec is not None
    assert spec.loader is not None
    program = module_from_spec(spec)
    spec.loader.exec_module(program)
    limit(memory)
    program.main(memory)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
