"""Runs packages: `load` a model, then `generate` and `chat`, or make your own loop of its `steps`."""

from trigraph.runtime.engine import Engine
from trigraph.runtime.generate import Generation, Options
from trigraph.runtime.loading import load
from trigraph.runtime.sampling import Sampling
from trigraph.runtime.stats import Stats

__all__ = ["Engine", "Generation", "Options", "Sampling", "Stats", "load"]
