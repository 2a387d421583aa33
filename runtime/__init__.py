"""Runs packages: `load` a model, then `generate` and `chat`, or make your own loop of its `steps`."""

import os

# ONNX Runtime records and reports its use, unless it is told not to before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from trigraph.runtime.constraint import Grammar, JsonSchema, Regex
from trigraph.runtime.engine import Engine
from trigraph.runtime.generate import Generation, Options
from trigraph.runtime.loading import load
from trigraph.runtime.sampling import Sampling
from trigraph.runtime.stats import Stats

__all__ = ["Engine", "Generation", "Grammar", "JsonSchema", "Options", "Regex", "Sampling", "Stats", "load"]
