"""Thousands of requests of all kinds, with clients, callbacks and files that go wrong: only the guilty may fail.

    python tools/soak.py --requests 10000

Clients cancel, run out of time, leave iterations (also in reference cycles, for the collector), register listeners that
raise, and send hostile grammars, while files of the cache are damaged on the disk. Samples of the completions are
computed again, each alone on an engine of its own, and compared by token ids and bits of log-probabilities. Prints a
line for each twentieth of the requests; ends with a status of 1 when an innocent request failed, a completion differs,
a slot or page was lost, or memory grew. Runs for minutes, outside the test suite.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trigraph.exporter import ExportOptions, export
from trigraph.models.errors import TrigraphError
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Engine, Grammar, JsonSchema, Options, QueueFullError, Request, Sampling, load
from trigraph.runtime.cache import disk_tier, tensor_file
from trigraph.runtime.device.heap import share_heap

CLIENTS, CONTEXT, SEQUENCES = 24, 512, 6
DISK = 64_000_000  # bytes of files: some hundred, so that some are removed all the time
WORDS = ("And", "it", "came", "to", "pass", "when", "the", "king", "heard", "words", "of", "captain", "unto", "them")
BEGINNINGS = ("The LORD is my shepherd; I shall not want. " * 3, "It was a dark night; ", "")
SCHEMA = JsonSchema('{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}')
HOSTILE = 'start: s\ns: s s s | s s | "" | /[^x]/'
KINDS = {
    "whole": 40,
    "iterated": 20,
    "async": 10,
    "cancelled": 5,
    "late": 5,
    "left": 5,
    "left in a cycle": 8,
    "async, left": 4,
    "careless listener": 3,
}
SAMPLED = 6  # one request of so many is compared with one alone


@dataclass(frozen=True)
class Plan:
    """A request that follows from its number."""

    number: int
    kind: str
    prompt: str
    options: Options
    priority: int

    @classmethod
    def of(cls, number: int, hostile: float) -> Plan:
        """The plan of a number; `hostile`: the share of grammars made to take long."""
        rng = random.Random(number)
        prompt = rng.choice(BEGINNINGS) + " ".join(rng.choices(WORDS, k=rng.choice([2, 10, 40])))
        sampling = Sampling(temperature=rng.choice([0.0, 0.9]), seed=number, repeat_penalty=rng.choice([1.0, 1.1]))
        options = Options(
            sampling,
            max_tokens=rng.choice([1, 8, 24, 80]),
            ignore_eos=True,
            speculate=rng.random() < 0.8,
            logprobs=2 if number % SAMPLED == 0 else None,
            constraint=SCHEMA if rng.random() < 0.05 else None,
        )
        kind = rng.choices([*KINDS], [*KINDS.values()])[0]
        if rng.random() < hostile:
            kind, options = "hostile", Options(Sampling(0.8, seed=number), 200, constraint=Grammar(HOSTILE))
        return cls(number, kind, prompt, options, rng.choice([0, 0, 1]))


class Cycle:
    """Something begun that nobody will end but the collector."""

    def __init__(self, begun: object) -> None:
        self.begun, self.itself = begun, self


class Clients:
    """Sends requests, and remembers what must not be."""

    def __init__(self, engine: Engine, hostile: float) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.samples: list[tuple[Plan, Request]] = []
        self._engine, self._share = engine, hostile
        self._lock = threading.Lock()

    def run(self, number: int) -> None:
        """One request."""
        plan = Plan.of(number, self._share)
        timeout = 0.01 if plan.kind == "late" else None
        try:
            request = self._engine.submit(plan.prompt, plan.options, priority=plan.priority, timeout=timeout)
        except QueueFullError:
            return self._count("refused")
        try:
            getattr(self, "_" + plan.kind.replace(", ", "_").replace(" ", "_"))(request)
        except Exception as error:
            if plan.kind != "hostile" or not isinstance(error, TrigraphError):
                self.faults.append(f"request {number} ({plan.kind}) failed: {error!r}")
        with self._lock:
            self.counts["preempted"] += request.preemptions
            if plan.number % SAMPLED == 0 and plan.kind != "hostile":
                self.samples.append((plan, request))
        self._count(plan.kind)

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def _whole(self, request: Request) -> None:
        request.result()

    _late = _hostile = _whole

    def _iterated(self, request: Request) -> None:
        if "".join(request) != request.text:
            self.faults.append("an iteration gave another text")

    def _async(self, request: Request) -> None:
        asyncio.run(_read(request))

    def _cancelled(self, request: Request) -> None:
        request.cancel()
        request.result()

    def _left(self, request: Request) -> None:
        next(iter(request), None)

    def _left_in_a_cycle(self, request: Request) -> None:
        pieces = iter(request)
        next(pieces, None)
        Cycle(pieces)

    def _async_left(self, request: Request) -> None:
        async def read() -> None:
            with suppress(TimeoutError):
                await asyncio.wait_for(_read(request), 0.005)

        asyncio.run(read())

    def _careless_listener(self, request: Request) -> None:
        request.listen(lambda: 1 // 0)
        request.result()


async def _read(request: Request) -> None:
    async for _ in request:
        pass


class Damage:
    """Damages files of a folder while the block runs. Files are replaced, as programs that share a folder do."""

    def __init__(self, folder: Path) -> None:
        self.count = 0
        self._folder, self._ended = folder, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Damage:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        rng, files = random.Random(1), list[Path]()
        while not self._ended.wait(0.05):
            if rng.random() < 0.02 or not files:  # thousands of files take long to list
                files = sorted(self._folder.glob("*/*.session"))
            if not files:
                continue
            path = rng.choice(files)
            with suppress(OSError):
                data = bytearray(path.read_bytes() or b"empty")
                what = rng.random()
                if what < 0.5:
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                elif what < 0.8:
                    del data[rng.randrange(len(data)) :]
                other = path.with_name("damaged")
                other.write_bytes(data if what < 0.9 else rng.randbytes(1000))
                os.replace(other, path)
                self.count += 1


def differences(reference: Engine, samples: list[tuple[Plan, Request]]) -> Iterator[str]:
    """Says which completions are not the beginning of what their request gets alone."""
    for plan, request in samples:
        alone = reference.generate(plan.prompt, plan.options)
        alone.run()
        reference.cache.clear()
        whole = request.stats.finish_reason not in ("cancelled", "timeout", "unfinished")
        ids = alone.ids if whole else alone.ids[: len(request.ids)]
        same = request.ids == ids and request.logprobs == alone.logprobs[: len(request.logprobs)]
        if not same or (whole and len(request.logprobs) != len(alone.logprobs)):
            yield f"request {plan.number} ({plan.kind}) differs from the same one alone"


def memory() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def settle(engine: Engine) -> None:
    """Waits until nothing is left to do."""
    gc.collect()
    while engine.load.running or engine.load.waiting:
        time.sleep(0.001)


def soak(package: Path, cache: Path, requests: int, hostile: float) -> bool:
    """Runs the requests; whether all is well."""
    least = load(package, threads=1, context=CONTEXT, sequences=1)
    state = least.steps.state
    pages = state.limits.pages * state.page_bytes  # one context for six requests: some are preempted
    engine = load(
        package, threads=1, context=CONTEXT, sequences=SEQUENCES, kv_memory=pages, max_waiting=64,
        cache_dir=cache, cache_size=DISK,
    )  # fmt: skip
    clients, state = Clients(engine, hostile), engine.steps.state
    sizes, part, compared, told = [], max(1, requests // 20), 0, 0
    with ThreadPoolExecutor(CLIENTS) as pool, Damage(cache) as damage:
        for start in range(0, requests, part):
            began = time.monotonic()
            list(pool.map(clients.run, range(start, start + part)))
            settle(engine)
            rate = part / (time.monotonic() - began)
            clients.faults += differences(least, clients.samples)
            compared += len(clients.samples)
            clients.samples.clear()
            sizes.append(memory())
            counts = ", ".join(f"{count} {what}" for what, count in sorted(clients.counts.items()))
            disk = f"{engine.disk.read} files read, {damage.count} damaged" if engine.disk is not None else ""
            line = f"{start + part} requests, {len(clients.faults)} faults, {rate:.0f}/s, {sizes[-1] / 1e6:.1f} MB"
            line += f", {compared} compared, {disk}"
            print(f"{line}; {counts}; {engine.cache.stats}", *clients.faults[told:], sep="\n", flush=True)
            told = len(clients.faults)
    if engine.disk is not None:
        engine.disk.finish()
    with engine.steps.lock:
        engine.cache.clear()
    lost = state.slots.size - state.slots.free, state.pages.size - state.pages.free
    growth = sizes[-1] / sizes[len(sizes) // 2] - 1
    print(
        f"{len(clients.faults)} faults; lost: {lost[0]} slots, {lost[1]} pages; "
        f"memory of the second half: {growth:+.1%}"
    )
    return not clients.faults and lost == (0, 0) and growth < 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--hostile", type=float, default=0.005, help="share of grammars made to take long")
    arguments = parser.parse_args()
    share_heap()  # as `trigraph serve` does: each thread's own heap would grow for a while
    logging.getLogger("trigraph").setLevel(logging.CRITICAL)  # careless listeners are logged
    # So that checkpoints of a small model are worth a file.
    disk_tier._MIN_SECONDS = disk_tier._MIN_READS = 0
    tensor_file._OPENING = 0.0
    tensor_file._BYTES_A_SECOND = 1e15
    with tempfile.TemporaryDirectory() as folder:
        export(TINY_GGUF, Path(folder) / "package", ExportOptions(weights="reference"))
        return int(not soak(Path(folder) / "package", Path(folder) / "cache", arguments.requests, arguments.hostile))


if __name__ == "__main__":
    sys.exit(main())
