"""Speculative decoding of hybrid Gated DeltaNet models: `load` one, then `generate` and `chat`.

The names are those of `trigraph.runtime`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trigraph import custom_ops as custom_ops
    from trigraph import exporter as exporter
    from trigraph import models as models
    from trigraph import runtime as runtime
    from trigraph.runtime.api import *  # noqa: F403

    __version__: str
else:
    _SUBPACKAGES = ("custom_ops", "exporter", "models", "runtime")

    def __getattr__(name: str) -> Any:
        """Imports what is asked for, and not before: each import of a subpackage imports this module first."""
        if name in _SUBPACKAGES:
            return import_module(f"{__name__}.{name}")
        runtime = import_module(f"{__name__}.runtime")
        if hasattr(runtime, name):
            return getattr(runtime, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*_SUBPACKAGES, *dir(import_module(f"{__name__}.runtime"))]
