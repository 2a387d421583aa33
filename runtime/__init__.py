"""Runs packages: `load` a model, then `generate` and `chat`, or make your own loop of its `steps`."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# ONNX Runtime records and reports its use, unless it is told not to before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from trigraph.runtime.constraint import Grammar, JsonSchema, Regex
    from trigraph.runtime.engine import Engine
    from trigraph.runtime.generate import Generation, Options
    from trigraph.runtime.loading import load
    from trigraph.runtime.sampling import Sampling
    from trigraph.runtime.stats import Stats

__all__ = ["Engine", "Generation", "Grammar", "JsonSchema", "Options", "Regex", "Sampling", "Stats", "load"]

_MODULES = {
    "Engine": "engine",
    "Generation": "generate",
    "Grammar": "constraint",
    "JsonSchema": "constraint",
    "Options": "generate",
    "Regex": "constraint",
    "Sampling": "sampling",
    "Stats": "stats",
    "load": "loading",
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for, and not before: the command has to be ready for Ctrl-C first."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
