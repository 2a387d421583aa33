"""Dataclasses from JSON that somebody else may have written."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from trigraph.models.errors import TrigraphError, quote

_BLOCK = 4096  # values that are checked together


def decode(kind: Any, value: Any, where: str, remedy: str, key: str = "") -> Any:
    """`value` from JSON as an instance of `kind`: a scalar, an optional or union, a tuple, a dataclass.

    Raises TrigraphError with the file (`where`), the key at fault and the `remedy` for another type or a missing key.
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        for option in args:
            if _fits(option, value):
                return decode(option, value, where, remedy, key)
    elif _fits(kind, value):
        if origin is tuple and args[1:] == (...,):
            return _decode_list(args[0], value, where, remedy, key)
        if origin is tuple:
            if len(args) == len(value):
                items = enumerate(zip(args, value, strict=True))
                return tuple(decode(one, item, where, remedy, f"{key}[{index}]") for index, (one, item) in items)
        elif dataclasses.is_dataclass(kind):
            return _decode_fields(kind, value, where, remedy, f"{key}." if key else "")
        else:
            return value
    raise TrigraphError(f"{where}: key {key!r} is {quote(str(value))}, which has the wrong type; {remedy}")


def _decode_list(kind: Any, values: list[Any], where: str, remedy: str, key: str) -> tuple[Any, ...]:
    """Values of one kind. There may be millions: blocks in which each is a scalar of that kind are taken whole."""
    decoded: list[Any] = []
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        if _all_fit(kind, block):
            decoded += map(tuple, block) if get_origin(kind) is tuple else block
        else:
            decoded += (decode(kind, item, where, remedy, f"{key}[{start + i}]") for i, item in enumerate(block))
    return tuple(decoded)


def _decode_fields(kind: Any, value: Mapping[str, Any], where: str, remedy: str, prefix: str) -> Any:
    hints = get_type_hints(kind)
    fields = {}
    for field in dataclasses.fields(kind):
        if field.name not in value:
            if field.default_factory is not dataclasses.MISSING:
                continue
            raise TrigraphError(f"{where}: key '{prefix}{field.name}' is missing; {remedy}")
        fields[field.name] = decode(hints[field.name], value[field.name], where, remedy, prefix + field.name)
    return kind(**fields)


def _all_fit(kind: Any, values: list[Any]) -> bool:
    """Whether many values are scalars of a kind, or lists of them; quickly, as there may be millions."""
    origin, args = get_origin(kind), get_args(kind)
    found = set(map(type, values))
    if origin is tuple:
        lists = args[1:] != (...,) and found <= {list} and set(map(len, values)) <= {len(args)}
        return lists and all(_all_fit(one, [value[i] for value in values]) for i, one in enumerate(args))
    kinds = {*(args if origin in (Union, types.UnionType) else (kind,))}
    return kinds <= {bool, int, float, str, type(None)} and found <= kinds | ({int} if float in kinds else set())


def _fits(kind: Any, value: Any) -> bool:
    """Whether `value` is of the JSON type that `kind` is made from."""
    if get_origin(kind) is tuple:
        return isinstance(value, list)
    if dataclasses.is_dataclass(kind):
        return isinstance(value, Mapping)
    return type(value) in ((int, float) if kind is float else (kind,))
