"""Times packages against the roofline of the machine, and against other engines: steps, and loads of requests."""

from trigraph.runtime.bench.options import BenchOptions
from trigraph.runtime.bench.report import Report
from trigraph.runtime.bench.request_options import RequestOptions
from trigraph.runtime.bench.request_report import RequestReport
from trigraph.runtime.bench.request_run import bench_requests
from trigraph.runtime.bench.result import Result
from trigraph.runtime.bench.run import bench

__all__ = [
    "BenchOptions",
    "Report",
    "RequestOptions",
    "RequestReport",
    "Result",
    "bench",
    "bench_requests",
]
