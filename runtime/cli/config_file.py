"""Options from a TOML file: those of a command by their names, and those of several models."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import typer

from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.cli.arguments import parse_tokens
from trigraph.runtime.cli.hints import remedy

_TABLES = "models"
_OF_THE_COMMAND = "its options are those of the command, without dashes"
_OF_A_MODEL = "a model has options of its files, its memory, sampling and template; others go before all tables"
_HEADER = re.compile(r"\s*\[([^\[\]]+)\]\s*(#.*)?")
_SYNTAX = re.compile(r"(.*) \((?:at line (\d+), column \d+|at end of document)\)")


@dataclass(frozen=True)
class ConfigFile:
    """A TOML file with options, whose messages name file and line."""

    file: Path
    text: str
    content: Mapping[str, Any]

    @classmethod
    def read(cls, file: Path) -> ConfigFile:
        """Raises TrigraphError for a file that cannot be read, or is not TOML."""
        text = ""
        try:
            text = file.read_text(encoding="utf-8")
            return cls(file, text, tomllib.loads(text))
        except OSError as error:
            raise TrigraphError(f"{file}: cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            match = _SYNTAX.fullmatch(str(error))
            where, why = (f"{file}:{match[2] or len(text.splitlines())}", match[1]) if match else (file, error)
            raise TrigraphError(f"{where}: is not TOML: {why}") from error

    def place(self, name: str = "", model: str | None = None) -> str:
        """FILE:LINE of an option or a model's table; FILE alone where the line is written in a way not looked for."""
        table = None if model is None else f"{_TABLES}.{model}"
        option = re.compile(rf"""\s*["']?{re.escape(name)}["']?\s*=""") if name else None
        here, line = table is None, 0
        for number, text in enumerate(self.text.splitlines(), 1):
            if header := _HEADER.fullmatch(text):
                here = re.sub(r"[\s\"']", "", header[1]) == table
                line = number if here else line
            elif here and option is not None and option.match(text):
                line = number
                break
        where = f"{self.file}:{line}" if line else str(self.file)
        return where if model is None else f"{where}: [{table}]"

    def options(self, known: Iterable[str]) -> Iterator[tuple[str, Any, str]]:
        """The options outside tables: name, value as the command line has it, and place.

        Raises TrigraphError for one that is not among `known`, which have no dashes before them.
        """
        for name, value in self.content.items():
            if name != _TABLES:
                where = self.place(name)
                if isinstance(value, dict) and name not in known:
                    raise TrigraphError(
                        f"{where}: unknown table [{name}]: options are outside tables, models in [models.NAME]"
                    )
                _check_name(where, name, [*known, _TABLES], _OF_THE_COMMAND)
                yield name, _text(value), where

    def models(self, *groups: Any) -> dict[str, tuple[Any, ...]]:
        """The tables `[models.NAME]` as changes of `groups`, which are dataclasses with options in their fields."""
        tables = self.content.get(_TABLES, {})
        if not (isinstance(tables, dict) and all(isinstance(table, dict) for table in tables.values())):
            raise TrigraphError(f"{self.file}: models must be tables: [models.NAME], and in it model = 'MODEL.gguf'")
        return {name: self._model(name, table, groups) for name, table in tables.items()}

    def _model(self, model: str, table: dict[str, Any], groups: tuple[Any, ...]) -> tuple[Any, ...]:
        known = {name: (index, field) for index, group in enumerate(groups) for name, field in _names(type(group))}
        values: list[dict[str, Any]] = [{} for _ in groups]
        for name, value in table.items():
            where = self.place(name, model)
            _check_name(where, name, known, _OF_A_MODEL)
            index, field = known[name]
            try:
                values[index][field] = _value(type(groups[index]), name, field, value)
            except (TrigraphError, typer.BadParameter) as error:
                raise TrigraphError(f"{where}: {getattr(error, 'message', error)}") from error
        if "model" not in table or not table["model"]:
            raise TrigraphError(
                f"{self.place(model=model)}: model is missing; write model = 'MODEL.gguf' or 'USER/REPO:QUANT'"
            )
        return tuple(replace(group, **given) for group, given in zip(groups, values, strict=True))


def _names(group: type[Any]) -> Iterable[tuple[str, str]]:
    """The options of a group without dashes, and the fields that they set; `model` in place of an argument."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        info = get_args(hints[field.name])[1]
        # In an annotation, the first name stands where typer expects a default.
        words = [getattr(info, "default", None), *(getattr(info, "param_decls", None) or ())]
        given = [word.partition("/")[0] for word in words if isinstance(word, str) and word.startswith("--")]
        for word in given or [f"--{field.name.replace('_', '-')}"]:
            if field.name != "hub":
                yield word[2:], field.name


def _value(group: type[Any], name: str, field: str, value: Any) -> Any:
    """The value of a field. Raises TrigraphError for one of another type."""
    hint = get_type_hints(group)[field]
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    if field == "context" and isinstance(value, str):
        return parse_tokens(value)
    if Path in kinds and isinstance(value, str):
        return Path(value).expanduser()
    if float in kinds and type(value) is int:
        return float(value)
    if any(get_origin(kind) is list for kind in kinds) and isinstance(value, list):
        return _text(value)
    if field == "template_kwargs" and isinstance(value, dict):
        return json.dumps(value)
    if type(value) in kinds:
        return value
    words = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}
    raise TrigraphError(f"{name} is {quote(value)}; it must be {words.get(kinds[0], 'a list of strings')}")


def _text(value: Any) -> Any:
    """A value as the command line has it."""
    if isinstance(value, dict):
        return json.dumps(value)
    return [str(item) for item in value] if isinstance(value, list) else value


def _check_name(where: object, name: str, known: Iterable[str], all_of_them: str) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
        other = f"did you mean {near[0]}?" if near else all_of_them
        hint = remedy(f"--{name}", [f"--{option}" for option in known]) or other
        raise TrigraphError(f"{where}: unknown option {quote(name)}: {hint}")
