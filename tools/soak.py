"""Thousands of requests at random on the shipped model: memory stays flat, no slot or page is lost, nobody starves.

    python tools/soak.py --requests 10000

Runs for minutes, outside the test suite. Prints a line for each twentieth of the requests and ends with a status of 1
when something was lost.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trigraph.exporter import ExportOptions, export
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Engine, Options, QueueFullError, Sampling, load
from trigraph.runtime.device.heap import share_heap

CLIENTS, CONTEXT = 24, 512
WORDS = ("And", "it", "came", "to", "pass", "when", "the", "king", "heard", "words", "of", "captain", "unto", "them")


def memory() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


class Client:
    """Sends requests one after the other; some are cancelled, abandoned, or run out of time."""

    def __init__(self, engine: Engine, counts: Counter[str]) -> None:
        self._engine, self._counts = engine, counts
        self._lock = threading.Lock()
        self.longest = 0.0
        """Seconds from a request's start until its first token."""

    def run(self, number: int) -> None:
        rng = random.Random(number)
        beginning = rng.choice(["The LORD is my shepherd; I shall not want. " * 3, "It was a dark night; ", ""])
        prompt = beginning + " ".join(rng.choices(WORDS, k=rng.choice([2, 10, 40])))
        sampling = Sampling(temperature=rng.choice([0.0, 0.9]), seed=number, repeat_penalty=rng.choice([1.0, 1.1]))
        options = Options(
            sampling, max_tokens=rng.choice([1, 8, 24, 80]), ignore_eos=True, speculate=rng.random() < 0.8
        )
        timeout = 0.01 if rng.random() < 0.05 else None
        try:
            request = self._engine.submit(prompt, options, priority=rng.choice([0, 0, 1]), timeout=timeout)
        except QueueFullError:
            return self._count("refused")
        kind = rng.random()
        if kind < 0.05:
            request.cancel()
        elif kind < 0.1:
            next(iter(request), None)  # abandoned
        request.result()
        with self._lock:
            self.longest = max(self.longest, request.stats.waiting_seconds + request.stats.prompt_seconds)
            self._counts["preempted"] += request.stats.preemptions
        self._count(request.stats.finish_reason)

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10000)
    arguments = parser.parse_args()
    share_heap()  # as `trigraph serve` does: each thread's own heap would grow for a while
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        export(TINY_GGUF, Path(folder) / "package", ExportOptions(weights="reference"))
        package = Path(folder) / "package"
        least = load(package, threads=1, context=CONTEXT, sequences=1).steps.state
        pages = least.limits.pages * least.page_bytes  # one context for six requests: some are preempted
        engine = load(package, threads=1, context=CONTEXT, sequences=6, kv_memory=pages, max_waiting=64)
        client, state = Client(engine, counts), engine.steps.state
        sizes, part = [], max(1, arguments.requests // 20)
        with ThreadPoolExecutor(CLIENTS) as pool:
            for start in range(0, arguments.requests, part):
                began = time.monotonic()
                list(pool.map(client.run, range(start, start + part)))
                seconds = time.monotonic() - began
                sizes.append(memory())
                print(
                    f"{start + part} requests, {part / seconds:.0f}/s, {sizes[-1] / 1e6:.1f} MB, "
                    f"longest wait {client.longest:.2f} s, {dict(counts)}, {engine.cache.stats}",
                    flush=True,
                )
        with engine.steps.lock:
            engine.cache.clear()
        lost = state.slots.size - state.slots.free, state.pages.size - state.pages.free
    growth = sizes[-1] / sizes[len(sizes) // 2] - 1
    print(f"lost: {lost[0]} slots, {lost[1]} pages; memory of the second half: {growth:+.1%}")
    return int(lost != (0, 0) or growth > 0.05)


if __name__ == "__main__":
    sys.exit(main())
