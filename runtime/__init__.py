"""Runs packages: `load` a model, then `generate` and `chat`, or make your own loop of its `steps`."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# ONNX Runtime records and reports its use, unless it is told not to before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from trigraph.runtime.decoding.constraint import Grammar as Grammar
    from trigraph.runtime.decoding.constraint import JsonSchema as JsonSchema
    from trigraph.runtime.decoding.constraint import Regex as Regex
    from trigraph.runtime.decoding.request import Options as Options
    from trigraph.runtime.decoding.sampling import Sampling as Sampling
    from trigraph.runtime.decoding.stats import Stats as Stats
    from trigraph.runtime.engine import Engine as Engine
    from trigraph.runtime.generate import Generation as Generation
    from trigraph.runtime.loading import load as load

_MODULES = {
    "Engine": "engine",
    "Generation": "generate",
    "Grammar": "decoding.constraint",
    "JsonSchema": "decoding.constraint",
    "Options": "decoding.request",
    "Regex": "decoding.constraint",
    "Sampling": "decoding.sampling",
    "Stats": "decoding.stats",
    "load": "loading",
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for, and not before: the command has to be ready for Ctrl-C first."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
