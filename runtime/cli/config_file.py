"""Options from a TOML file: those of a command by their names, and those of several models."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.cli.arguments import ModelArguments, parse_tokens
from trigraph.runtime.cli.hints import remedy

_TABLES = "models"


def read_options(file: Path, names: Mapping[str, str]) -> dict[str, Any]:
    """The options in a file by parameter; `names`: parameters by option, without dashes before it.

    Raises TrigraphError for a file that cannot be read, and for an unknown option.
    """
    content = _read(file)
    content.pop(_TABLES, None)
    for name in content:
        _check_name(file, name, [*names, _TABLES])
    return {names[name]: _text(value) for name, value in content.items()}


def read_models(file: Path, base: ModelArguments) -> dict[str, ModelArguments]:
    """The models in the tables `[models.NAME]` of a file; what one does not say is as in `base`."""
    tables = _read(file).get(_TABLES, {})
    if not (isinstance(tables, dict) and all(isinstance(table, dict) for table in tables.values())):
        raise TrigraphError(f"{file}: models must be tables: [models.NAME], and in it model = 'MODEL.gguf'")
    return {name: _model(f"{file}: [models.{name}]", table, base) for name, table in tables.items()}


def _model(where: str, table: dict[str, Any], base: ModelArguments) -> ModelArguments:
    names = {"model": "model", **_options()}
    for name in table:
        _check_name(where, name, names)
    if not isinstance(table.get("model"), str):
        raise TrigraphError(f"{where}: model is missing; write model = 'MODEL.gguf' or 'USER/REPO:QUANT'")
    values = {names[name]: _value(where, name, names[name], value) for name, value in table.items()}
    return replace(base, hub=None, **values)


def _options() -> dict[str, str]:
    """The options of a model without their dashes, and the fields that they set."""
    hints = get_type_hints(ModelArguments, include_extras=True)
    found = {}
    for field in fields(ModelArguments):
        info = get_args(hints[field.name])[1]
        given = [text for text in getattr(info, "param_decls", None) or () if text.startswith("--")]
        found[(given or [f"--{field.name.replace('_', '-')}"])[0][2:]] = field.name
    return {name: field for name, field in found.items() if field not in ("model", "hub")}


def _value(where: str, name: str, field: str, value: Any) -> Any:
    """The value of a field. Raises TrigraphError for one of another type."""
    hint = get_type_hints(ModelArguments)[field]
    kinds = get_args(hint) or (hint,)
    if field == "context" and isinstance(value, str):
        return parse_tokens(value)
    if Path in kinds and isinstance(value, str):
        return Path(value).expanduser()
    if type(value) in kinds:
        return value
    wanted = next(kind for kind in kinds if kind is not type(None))
    names = {str: "a string", int: "a whole number", bool: "true or false", Path: "a path"}
    raise TrigraphError(f"{where}: {name} is {quote(value)}; it must be {names[wanted]}")


def _text(value: Any) -> Any:
    """A value as the command line has it."""
    return [str(item) for item in value] if isinstance(value, list) else value


def _check_name(where: object, name: str, known: Iterable[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
        other = f"did you mean {near[0]}?" if near else "its options are those of the command, without dashes"
        hint = remedy(f"--{name}", [f"--{option}" for option in known]) or other
        raise TrigraphError(f"{where}: unknown option {quote(name)}: {hint}")


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise TrigraphError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TrigraphError(f"{file}: is not TOML: {error}") from error
