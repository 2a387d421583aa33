"""Which kernels a step consists of, by PyTorch's profiler, which sees all of this process, captured graphs too."""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

STEPS, SHOWN = 5, 12
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of events."""
BETWEEN = 50.0
"""Microseconds: a longer gap is one between steps."""


def profiled(name: str, step: Callable[[], object], found: Callable[..., None]) -> None:
    """Reports a step that is captured in a few runs: launches, us of its kernels and of the gaps, then by kernel.

    `found` takes a row's name and figures. Raises RuntimeError where the profiler sees no kernel.
    """
    for _ in range(STEPS):
        step()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace.export_chrome_trace(str(path := Path(folder, "trace.json")))
        events = json.loads(path.read_text())["traceEvents"]
    report(name, [event for event in events if event.get("cat") in ON_DEVICE], found)


def report(name: str, events: Sequence[Mapping[str, Any]], found: Callable[..., None]) -> None:
    """Reports what ran on the device in STEPS steps."""
    if not events:
        raise RuntimeError("the profiler has seen no kernel; is CUPTI there, and no other profiler?")
    events = sorted(events, key=lambda event: event["ts"])
    by_kernel: dict[str, list[float]] = defaultdict(list)
    for event in events:
        by_kernel[short(event["name"])].append(event["dur"])
    ends = accumulate((event["ts"] + event["dur"] for event in events), max)
    gaps = [later["ts"] - end for end, (_, later) in zip(ends, pairwise(events), strict=False)]
    idle = sum(gap for gap in gaps if 0 < gap < BETWEEN)
    busy = sum(map(sum, by_kernel.values()))
    found(f"{name}: launches, kernels, gaps", len(events) / STEPS, busy / STEPS, idle / STEPS)
    for kernel, times in sorted(by_kernel.items(), key=lambda item: -sum(item[1]))[:SHOWN]:
        found(f"{name}: {kernel}", len(times) / STEPS, sum(times) / STEPS)


def short(kernel: str) -> str:
    """A kernel's name without namespaces and parameters."""
    bare = kernel.replace("(anonymous namespace)::", "").removeprefix("void ")
    return re.sub(r"(\w+::)+", "", re.sub(r"\(.*", "", bare))[:40]
