"""The C library's heap, as glibc itself tells of it."""

from __future__ import annotations

import os
import platform
import queue
import resource
import subprocess
import sys
import threading

import numpy as np
import pytest

from trigraph.runtime.device.heap import populate, share_heap, trim_heap
from trigraph.runtime.state.memory_ahead import MemoryAhead
from trigraph.runtime.state.pool import Pool

_THREADS = """
import ctypes, threading
from trigraph.runtime.device.heap import share_heap, trim_heap
{begin}
started = threading.Barrier(4)

def use():
    started.wait()
    for _ in range(200):
        bytes(5000)

threads = [threading.Thread(target=use) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
ctypes.CDLL(None).malloc_stats()
"""
_TRIM = """
from pathlib import Path
from trigraph.runtime.device.heap import trim_heap

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

blocks = [bytes(range(250)) * 40 for _ in range(5000)]  # 50 MB, too small for mappings of their own
kept = blocks[::50]
del blocks
before = resident()
trim_heap()
print(before - resident())
"""
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is another one")


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)


@glibc
def test_threads_share_a_heap() -> None:
    heaps = {begin: run(_THREADS.format(begin=begin)).stderr.count("Arena ") for begin in ("", "share_heap()")}
    assert heaps[""] > 1 and heaps["share_heap()"] == 1


@glibc
def test_what_is_free_is_given_back() -> None:
    assert int(run(_TRIM).stdout) > 40e6


@pytest.mark.skipif(sys.platform != "linux", reason="faults are counted by Linux")
def test_memory_that_was_populated_is_there_and_as_it_was() -> None:
    array = np.zeros((4, 8 << 20), np.uint8)
    array[1, 5000:5100] = 7
    populate(array[1])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    array[1, 6000:] += 1
    if resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before > 100:
        pytest.skip("the system cannot populate")
    assert array[1].sum() == 700 + (8 << 20) - 6000 and not array[2].any()


def test_numbers_that_are_taken_next_are_seen_to_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, seen = Pool(6, "slots", "sequences"), queue.Queue[int]()
    monkeypatch.setattr("trigraph.runtime.state.memory_ahead._PAUSE", 0)
    monkeypatch.setattr("trigraph.runtime.state.memory_ahead.populate", seen.put)
    ahead = MemoryAhead(pool, [np.arange(6)])
    first = pool.take()
    ahead.prepare(2)
    assert [seen.get(timeout=60) for _ in range(2)] == [1, 2]
    pool.take()
    pool.drop(first)  # is taken first, and has its memory
    ahead.prepare(2)
    ahead.prepare(9)
    assert [seen.get(timeout=60) for _ in range(3)] == [3, 4, 5]
    assert seen.empty()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has priorities of threads")
def test_the_thread_that_sees_to_them_waits_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def priority() -> tuple[int, int]:
        return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    seen = queue.Queue[tuple[int, int]]()
    monkeypatch.setattr("trigraph.runtime.state.memory_ahead.populate", lambda _: seen.put(priority()))
    MemoryAhead(Pool(1, "slots", "sequences"), [np.arange(1)]).prepare(1)
    assert seen.get(timeout=60) == priority()


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("ctypes.CDLL", None)
    share_heap()
    trim_heap()
