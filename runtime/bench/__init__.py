"""Times packages against the roofline of the machine, and against llama.cpp."""

from trigraph.runtime.bench.report import Report, Result
from trigraph.runtime.bench.run import BenchOptions, bench

__all__ = ["BenchOptions", "Report", "Result", "bench"]
