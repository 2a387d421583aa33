"""What the command line leaves, called within this process."""

import io
from collections.abc import Callable
from typing import NamedTuple


class Result(NamedTuple):
    """What a command left."""

    status: int
    out: str
    err: str


Run = Callable[..., Result]


class CommandInput(io.TextIOWrapper):
    def __init__(self, content: bytes, terminal: bool) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def assert_one_line_error(result: Result, text: str) -> None:
    assert result.status == 2, result
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1, result.err
    assert text in result.err
