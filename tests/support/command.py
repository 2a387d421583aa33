"""The command line within this process, or in one of its own."""

import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple


class Result(NamedTuple):
    """What a command left."""

    status: int
    out: str
    err: str


Run = Callable[..., Result]

# To start `trigraph` in a process of its own: as it is, or after a line that says that Python is ready for signals.
COMMAND = [sys.executable, "-c", "from trigraph.runtime.cli.app import main; main()"]
READY_COMMAND = [*COMMAND[:2], "from trigraph.runtime.cli.app import main; print('ready', flush=True); main()"]


def run_command(*arguments: object, **options: Any) -> Result:
    """Run `trigraph` in a process of its own."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        check=False, **options,
    )  # fmt: skip
    return Result(done.returncode, done.stdout, done.stderr)


class CommandInput(io.TextIOWrapper):
    def __init__(self, content: bytes, terminal: bool) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def assert_one_line_error(result: Result, *texts: str) -> None:
    """Status 2, and one line of error that says `texts`."""
    assert result.status == 2, result
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1, result.err
    for text in texts:
        assert text in result.err
