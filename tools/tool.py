"""How a tool takes its command line."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cli.command import Command


def run_tool(tool: Callable[..., None]) -> None:
    """Runs the command line of `tool`. Errors that the user can fix end with one line on stderr."""
    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command.command(cls=Command)(tool)
    try:
        command()
    except TrigraphError as error:
        sys.exit(f"error: {error}")
