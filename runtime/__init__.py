"""Runs packages: `load` a model, then `generate` and `chat`, or make your own loop of its `steps`."""

import os

# ONNX Runtime records and reports its use, unless it is told not to before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from trigraph.runtime.engine import Engine  # noqa: E402
from trigraph.runtime.generate import Generation, Options  # noqa: E402
from trigraph.runtime.loading import load  # noqa: E402
from trigraph.runtime.sampling import Sampling  # noqa: E402
from trigraph.runtime.stats import Stats  # noqa: E402

__all__ = ["Engine", "Generation", "Options", "Sampling", "Stats", "load"]
