"""Times packages against the roofline of the machine, and against llama.cpp."""

from trigraph.runtime.bench.options import BenchOptions
from trigraph.runtime.bench.report import Report
from trigraph.runtime.bench.result import Result
from trigraph.runtime.bench.run import bench

__all__ = ["BenchOptions", "Report", "Result", "bench"]
