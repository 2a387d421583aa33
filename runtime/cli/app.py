"""The command `trigraph`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from trigraph.models.errors import TrigraphError, quote
from trigraph.models.signals import deferred
from trigraph.runtime.cli.command import command_of, with_plain_types
from trigraph.runtime.cli.console import say
from trigraph.runtime.cli.hints import remedy_of_command
from trigraph.runtime.text.template_renderer import TemplateError

_USER_ERROR, _INTERRUPTED = 2, 130
# Of each command, the module that has it.
_MODULES = {
    "run": "run",
    "serve": "serve",
    "export": "export",
    "inspect": "export",
    "synth": "export",
    "models": "models",
    "bench": "measure",
    "perplexity": "perplexity",
    "doctor": "doctor",
    "audit": "audit",
    "verify": "verify",
}
# Commands of ollama, vLLM and huggingface_hub, and what they are called here.
_HABITS = {
    "pull": ("models", "pull"),
    "download": ("models", "pull"),
    "list": ("models",),
    "ls": ("models",),
    "rm": ("models", "rm"),
    "show": ("inspect",),
    "chat": ("run",),
    "server": ("serve",),
}


class _Commands(Mapping[str, TyperCommand]):
    """The commands by name. Each is imported when it is asked for: one does not wait for what the others import."""

    def __getitem__(self, name: str) -> TyperCommand:
        module = import_module(f"trigraph.runtime.cli.{_MODULES[name]}")
        return command_of(getattr(module, name))

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


class _Group(TyperGroup):
    """The command line. Ctrl-C waits for its imports: Python drops a KeyboardInterrupt in parts of an import."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()  # type: ignore[assignment]

    def get_params(self, ctx: Any) -> list[Any]:
        return with_plain_types(ctx, super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in [name for p in self.get_params(ctx) for name in p.opts]:
            raise TrigraphError(f"unknown option {args[0]}: {remedy_of_command(args[0])}")
        with deferred(signal.SIGINT):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if (advice := remedy_of_command(args[0])) is not None:
            raise TrigraphError(f"unknown command {quote(args[0])}: {advice}")
        with deferred(signal.SIGINT):
            return super().resolve_command(ctx, [*_HABITS.get(args[0], args[:1]), *args[1:]])


app = typer.Typer(
    cls=_Group,
    help="Run GGUF files of Qwen3.5, 3.6, 3.8 and Qwen3-Next, with lossless speculative decoding.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from trigraph.runtime import __version__

        print(f"trigraph {__version__}")
        raise typer.Exit


@app.callback()
def _main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Runs the command line. Errors that the user can fix end with one line on stderr and status 2, Ctrl-C with 130."""
    if sys.stderr is None:  # print() would take stdout in its place
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the end of the process
    sys.exit(_status())


def _status() -> int:
    """Runs the command; returns the exit status."""
    try:
        if sys.stdout is None:
            raise TrigraphError("stdout is closed; redirect it to a file, or to /dev/null")
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")
        return app(prog_name="trigraph", standalone_mode=False) or 0
    except TemplateError as error:
        say(f"error: {error}; --raw completes plain text without it")
    except TrigraphError as error:
        say(f"error: {error}")
    except typer.TyperException as error:
        # No message: a command without arguments has shown its help.
        if message := error.format_message().rstrip("."):
            context = getattr(error, "ctx", None)
            hint = (
                ""
                if context is None
                else f"{'' if message.endswith('?') else '.'} Try '{context.command_path} --help'."
            )
            say(f"error: {message}{hint}")
    except OSError as error:  # of stdout most likely: those of files have been explained
        say(f"error: input or output failed: {error}")
        _discard_output()
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    return _USER_ERROR


def _discard_output() -> None:
    """Drops what stdout still buffers: writing it at exit would fail again."""
    with suppress(OSError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
