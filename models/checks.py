"""Checks of what callers pass: a value of another type is told from one that is out of range."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from trigraph.models.errors import TrigraphError, quote

_TYPES: dict[type, tuple[str, tuple[type, ...]]] = {
    bool: ("True or False", (bool, np.bool_)),
    int: ("a whole number", (int, np.integer)),
    float: ("a number", (int, float, np.integer, np.floating)),
    str: ("a string", (str,)),
}

_TOO_LARGE = 2**1023  # for a float, or nearly so


def is_a(value: object, kind: type) -> bool:
    """Whether `value` is a bool, int, float or str, or what NumPy has in its place; truth values are no numbers."""
    if kind is float and isinstance(value, int) and abs(value) >= _TOO_LARGE:
        return False
    return isinstance(value, _TYPES[kind][1]) and (kind is bool or not isinstance(value, bool))


def check(name: str, value: object, kind: type, holds: Callable[[Any], bool] | None = None, wanted: str = "") -> None:
    """Raises TrigraphError when an argument is no bool, int, float or str, or `holds` denies that it is `wanted`."""
    if not is_a(value, kind):
        raise TrigraphError(f"{name} is {quote(value)}; it must be {_TYPES[kind][0]}")
    if holds is not None and not holds(value):
        raise TrigraphError(f"{name} is {quote(value)}; it must be {wanted}")


def check_keywords(of: str, given: Iterable[str], known: Collection[str], foreign: Mapping[str, str]) -> None:
    """Raises TrigraphError for a keyword that is not `known`: with what `foreign` says to do, or the nearest name."""
    for name in given:
        if name in known:
            continue
        if (remedy := foreign.get(name)) is None:
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
        raise TrigraphError(f"{of} has no keyword {quote(name)}: {remedy}")
