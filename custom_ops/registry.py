"""All operators by name: each family's `operators.py` is found in its folder, so there is no list to keep."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

import trigraph.custom_ops
from trigraph.custom_ops.operator_type import Operator
from trigraph.models.errors import TrigraphError


@cache
def operators() -> Mapping[str, Operator]:
    """Every operator, by its ONNX operator type."""
    files = (file for folder in trigraph.custom_ops.__path__ for file in Path(folder).glob("*/operators.py"))
    families = sorted({file.parent.name for file in files})
    modules = [import_module(f"trigraph.custom_ops.{family}.operators") for family in families]
    return {operator.name: operator for module in modules for operator in module.OPERATORS}


def operator(op_type: str) -> Operator:
    """The operator of that name. Raises TrigraphError for one that no family defines."""
    found = operators().get(op_type)
    if found is None:
        known = ", ".join(sorted(operators()))
        raise TrigraphError(f"unknown operator {op_type} in the domain trigraph; this version has {known}")
    return found
