"""How commands take their arguments: parameters in groups, and a helpful word on options that do not exist."""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo

from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.cli.hints import remedy


def _show_all(ctx: typer.Context, given: bool) -> None:
    if given:
        for parameter in ctx.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(ctx.get_help())
        raise typer.Exit


_HelpAll = Annotated[bool, typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show all options.")]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator of commands: a parameter that is a dataclass stands for one option for each of its fields.

    The class attribute `panel` is the heading of these options in `--help`. Where it has an attribute `common`, those
    fields alone are shown there; `--help-all` shows the others, too.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if hasattr(hint, "panel")}
    parameters = [parameter for group in groups.values() for parameter in _parameters(group)]
    if any(hasattr(group, "common") for group in groups.values()):
        parameters.append(
            inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_HelpAll)
        )

    @functools.wraps(command)
    def call(**values: Any) -> None:
        command(**{name: group(**{f.name: values[f.name] for f in fields(group)}) for name, group in groups.items()})

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _parameters(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        annotation: Any = hints[field.name]
        kind, info = get_args(annotation)
        if isinstance(info, OptionInfo):
            info = copy.copy(info)
            info.rich_help_panel = group.panel
            info.hidden = field.name not in getattr(group, "common", (field.name,))
            annotation = Annotated[kind, info]
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def examples(*lines: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator of commands: adds lines to the end of `--help`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        command.examples = lines  # type: ignore[attr-defined]
        return command

    return decorate


def command_of(function: Callable[..., None]) -> TyperCommand:
    """The command that calls `function`."""
    app = typer.Typer(add_completion=False)
    lines = getattr(function, "examples", ())
    app.command(cls=Command, epilog="Examples:\n\n\b\n" + "\n".join(lines) if lines else None)(function)
    made: TyperCommand = typer.main.get_command(app)  # type: ignore[assignment]
    return made


def with_plain_types(ctx: Any, parameters: list[Any]) -> list[Any]:
    """The parameters, whose types `--help` shows as N, X, TEXT or FILE; a flag and an argument show none."""
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: None
        elif parameter.metavar is None:
            parameter.metavar = _TYPES.get(parameter.display_type(ctx).strip("<>"))
    return parameters


_TYPES = {"bool": "", "int": "N", "float": "X", "str": "TEXT", "path": "FILE"}


class Command(TyperCommand):
    """A command that explains what it does not know. Options of one letter are not clustered: `-ngl` is one option."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters; those without a metavar of their own get a plain one."""
        return with_plain_types(ctx, super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises TrigraphError for unknown options, and for more arguments than the command takes."""
        if not ctx.resilient_parsing:  # as when the shell completes a word
            self._check(ctx, args)
            self._configure(ctx, args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if error.param is None or (wrong := _wrong_value(max(error.param.opts, key=len), error)) is None:
                raise
            raise TrigraphError(wrong) from error

    def _configure(self, ctx: Any, args: list[str]) -> None:
        """Takes the options of a file that --config names for defaults, where the command has that option."""
        options = {name[2:]: p for p in self.get_params(ctx) for name in p.opts if name.startswith("--")}
        if options.pop("config", None) is None:
            return
        given = [args[i + 1] for i, word in enumerate(args[:-1]) if word == "--config"]
        given += [word.partition("=")[2] for word in args if word.startswith("--config=")]
        for file in given:
            from trigraph.runtime.cli.config_file import ConfigFile

            ctx.default_map = {}
            for name, value, where in ConfigFile.read(Path(file)).options(options):
                option = options[name]
                given_value = [value] if option.multiple and isinstance(value, str) else value
                try:
                    option.process_value(ctx, given_value)
                except typer.BadParameter as error:
                    wrong = _wrong_value(name, error) or f"{name}: {error.message}"
                    raise TrigraphError(f"{where}: {wrong}") from error
                ctx.default_map[option.name] = given_value

    def _check(self, ctx: Any, args: list[str]) -> None:
        parameters = self.get_params(ctx)
        options = [p for p in parameters if p.param_type_name == "option"]
        takes_value = {name: not p.is_flag for p in options for name in (*p.opts, *p.secondary_opts)}
        paths = {name for p in options if p.display_type(ctx) == "<path>" for name in p.opts}
        free = len(parameters) - len(options)
        words = iter(args)
        for word in words:
            name, given, value = word.partition("=")
            if word == "--":
                return
            if word.startswith(_DASHES):
                hint = _advice("--" + word.lstrip("".join(_DASHES)), list(takes_value)) or "write hyphens, - or --"
                raise TrigraphError(f"{quote(word)} begins with a dash that is no hyphen: {hint}")
            if not word.startswith("-") or word == "-":
                free -= 1
                if free < 0:
                    hint = next((hint for option, hint in _FREE_WORDS.items() if option in takes_value), "")
                    raise TrigraphError(f"unexpected argument {quote(word)}{hint}")
                if not word.strip():
                    raise TrigraphError(f"an argument is {quote(word)}; is a variable of the shell unset?")
            elif takes_value.get(name):
                value = value if given else next(words, "-")  # without one, Typer says so
                if value in takes_value and not given:
                    raise TrigraphError(f"{name} needs a value, and the option {value} follows it")
                if value == "" and name in paths:
                    raise TrigraphError(f"{name} is empty; is a variable of the shell unset?")
            elif name not in takes_value and not (takes_value.get(word[:2]) and re.fullmatch(r"-\w-?\d+", word)):
                every = "--help-all" if "--help-all" in takes_value else "--help"
                hint = _advice(name, list(takes_value)) or f"'{ctx.command_path} {every}' lists all"
                raise TrigraphError(f"unknown option {name}: {hint}")


_DASHES = ("\u2010", "\u2011", "\u2012", "\u2013", "\u2014", "\u2212")  # into which word processors turn hyphens
_FREE_WORDS = {"--prompt": "; give the prompt with -p", "--out": "; give the folder with -o"}
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def _wrong_value(name: str, error: typer.BadParameter) -> str | None:
    """What to say of the value of an option that is no number, or out of range; None where the error says it itself."""
    if (errors := getattr(error.__cause__, "errors", None)) is None:
        return None
    first = errors()[0]
    kind = _KINDS.get(first["type"].partition("_")[0])
    wanted = f"write {kind}" if kind else first["msg"].replace("Input should", "it must")
    return f"{name} is {quote(first['input'])}; {wanted}"


def _advice(name: str, ours: list[str]) -> str | None:
    """What to use in place of an unknown option, if that is known."""
    if (advice := remedy(name, ours)) is not None:
        return advice
    near = difflib.get_close_matches(name, ours, n=1, cutoff=0.8) if len(name) > 3 else []
    return f"did you mean {near[0]}?" if near else None
