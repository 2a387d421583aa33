"""Runs packages: `load` a model, then `generate` and `chat`, or make your own loop of its `steps`."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# ONNX Runtime records and reports its use, unless it is told not to before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from trigraph.runtime.api import *  # noqa: F403

    __version__: str
else:

    def __getattr__(name: str) -> Any:
        """Imports the public names when one is asked for, and not before: the command has to be ready for Ctrl-C."""
        if name == "__version__":
            return _version()
        if name == "__all__" or not name.startswith("_"):
            api = import_module(f"{__name__}.api")
            if name in api.__all__ or name == "__all__":
                return getattr(api, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*import_module(f"{__name__}.api").__all__, "__doc__", "__version__"]


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("trigraph")
    except PackageNotFoundError:  # a checkout that is not installed
        return "unknown"
