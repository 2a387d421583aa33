"""Marks of parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_after(count: int, values: Iterable[Any]) -> list[pytest.ParameterSet]:
    """Values of one parameter, of which `make check` takes the first `count`."""
    return [pytest.param(value, marks=pytest.mark.slow if at >= count else ()) for at, value in enumerate(values)]
