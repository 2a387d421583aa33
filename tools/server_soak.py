"""One server, thousands of requests of all kinds, most of them hostile, while ordinary streams run beside them.

    python tools/server_soak.py --requests 20000
    python tools/server_soak.py --requests 20000 --ray 2
    python tools/server_soak.py --requests 300 --without schema grammar

The server is this checkout's own, of the tiny model with a random vision tower, on loopback; with --ray so many
replicas stand behind it. Every ordinary completion must be what one engine in this process says. Prints a line for each
twentieth of the requests, and sums by kind; ends with a status of 1 when a process that must live has ended, a
completion differs, a request has no answer or one of the server's own faults (500), or memory grew. Ordinary streams'
longest gaps are reported, with the requests beside them. Sends nothing after --minutes, and ends when the last answers
have come, or two minutes later.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from hostile import KINDS, Attempt
from hostile.attempt import MOST_TOKENS
from hostile.seen import Seen
from hostile.steady import Gap, watch

from replicas import Server, requests, server, streamed
from support.servers.ray_cluster import MARK, processes, replica_ids
from trigraph.models.synth import write_synthetic_mmproj
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Options, Sampling, load

CONTEXT = 1024
ORDINARY = 48  # different ones
ANSWER_SECONDS = 120.0  # for which a client waits for a whole answer
STEADY = 2  # ordinary streams at any time
WATCH_SECONDS = 2.0
GROWTH = 0.10


@dataclass
class Soak:
    """A server, and its clients."""

    server: Server
    bodies: list[dict[str, Any]]
    texts: list[str]
    """Of the bodies, by an engine alone."""
    options: argparse.Namespace
    vital: set[int]
    """Processes that must live."""
    seen: Seen = field(default_factory=Seen)

    async def run(self) -> None:
        """All requests."""
        until = time.monotonic() + 60 * self.options.minutes
        numbers = iter(range(self.options.requests))
        watching = asyncio.create_task(self._watch())
        started = time.monotonic()

        async def client() -> None:
            for number in numbers:
                if time.monotonic() > until or not self._lives():
                    return
                await self._one(number)
                self.seen.done += 1
                if self.seen.done % max(1, self.options.requests // 20) == 0:
                    self._tell(time.monotonic() - started)

        with self._steady():
            await asyncio.gather(*(client() for _ in range(self.options.clients)))
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        if self.seen.done < self.options.requests:
            self.seen.fault(f"only {self.seen.done} requests were sent in time")

    def _lives(self) -> bool:
        return all(map(_alive, self.vital))

    def _tell(self, seconds: float) -> None:
        seen = self.seen
        print(
            f"{seen.done} requests, {seen.done / seconds:.0f}/s, {len(seen.faults)} faults, {seen.compared} compared; "
            f"{seen.memory[-1] / 1e6 if seen.memory else 0:.0f} MB in {len(self._processes())} processes; "
            f"longest gap {max(seen.gaps, default=0):.2f} s, first token {max(seen.firsts, default=0):.2f} s",
            flush=True,
        )

    async def _one(self, number: int) -> None:
        rng = random.Random(f"{self.options.seed} {number}")
        names = [name for name in KINDS if name in self.options.kinds]
        hostile = rng.random() < self.options.hostile and names
        kind = rng.choices(names, [KINDS[name][1] for name in names])[0] if hostile else "ordinary"
        self.seen.now[kind] += 1
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if hostile:
                    attempt = KINDS[kind][0](rng)
                    status = await self._attempt(attempt)
                    if status is None and attempt.answered and attempt.sent is None and attempt.read is None:
                        self.seen.fault(f"request {number} ({kind}): the connection ended without an answer")
                    elif status in (500, 501, 502, 504) or (status == 503 and not self.options.ray):
                        self.seen.fault(f"request {number} ({kind}): a status of {status}")
                    self.seen.statuses[kind][str(status or "none")] += 1
                else:
                    await self._ordinary(rng.randrange(len(self.bodies)))
                    self.seen.statuses[kind]["200"] += 1
        except TimeoutError:
            self.seen.fault(f"request {number} ({kind}): no whole answer within {ANSWER_SECONDS:.0f} s")
        except Exception as error:
            self.seen.fault(f"request {number} ({kind}): {error!r}"[:500])
        finally:
            self.seen.now[kind] -= 1

    async def _ordinary(self, number: int) -> None:
        text, _ = await streamed(self.server.address, "/v1/completions", self.bodies[number])
        self._compare(number, text)

    def _compare(self, number: int, text: str) -> None:
        self.seen.compared += 1
        if text != self.texts[number]:
            self.seen.fault(f"ordinary completion {number} differs: {text[:80]!r}, alone {self.texts[number][:80]!r}")

    async def _attempt(self, attempt: Attempt) -> int | None:
        """The status of the answer; None where there was none, or nobody waited for one."""
        host, _, port = self.server.address.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 26)
        answer, size = b"", 0
        try:
            with suppress(ConnectionError):  # a server may answer before it has read all, and close
                start = (len(attempt.data) if attempt.sent is None else attempt.sent) - attempt.dripped
                writer.write(attempt.data[:start])
                await writer.drain()
                for byte in attempt.data[start : start + attempt.dripped]:
                    await asyncio.sleep(0.05)
                    writer.write(bytes([byte]))
            if attempt.sent is not None:
                return None
            with suppress(ConnectionError):
                if not attempt.answered:
                    writer.write_eof()
                while piece := await reader.read(1 << 16):
                    answer, size = answer[:100] + piece[:100], size + len(piece)
                    if attempt.read is not None and size >= attempt.read:
                        return None
        finally:
            writer.close()
        words = answer[:20].split()
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else None

    @contextmanager
    def _steady(self) -> Iterator[None]:
        """Ordinary streams without end, each after the other."""
        loop, context = asyncio.get_running_loop(), multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        asked = (self.server.address, self.bodies, STEADY, ANSWER_SECONDS, theirs)
        process = context.Process(target=watch, args=asked, daemon=True)
        mark = os.environ.pop(MARK)  # it is none of the server's
        process.start()
        os.environ[MARK] = mark
        theirs.close()
        loop.add_reader(ours.fileno(), self._hear, ours)
        try:
            yield
        finally:
            loop.remove_reader(ours.fileno())
            process.kill()
            process.join()

    def _hear(self, streams: Connection) -> None:
        try:
            found = streams.recv()
        except EOFError:
            asyncio.get_running_loop().remove_reader(streams.fileno())
            self.seen.fault("the process of the ordinary streams has ended")
            return
        if isinstance(found, Gap):
            self.seen.beside.append((found.seconds, +self.seen.now))
        elif found.error is not None:
            self.seen.fault(f"an ordinary stream failed: {found.error}")
        else:
            self.seen.firsts.append(found.first)
            self.seen.gaps.append(found.gap)
            self._compare(found.number, found.text)

    def _processes(self) -> list[int]:
        return [int(folder.name) for folder in processes()]

    async def _watch(self) -> None:
        told: set[int] = set()
        while True:
            found = self._processes()
            self.seen.helpers |= {*found}
            self.seen.memory.append(sum(map(_memory, found)))
            for process in self.vital - told:
                if not _alive(process):
                    told.add(process)
                    self.seen.fault(f"process {process} has ended, after {self.seen.done} requests")
            await asyncio.sleep(WATCH_SECONDS)

    def report(self) -> int:
        """Prints sums; the exit status."""
        seen = self.seen
        seen.tell(len(self._processes()))
        if errors := self.server.log.read_text(errors="replace").count("Traceback (most recent call last)"):
            seen.fault(f"{self.server.log}: has {errors} tracebacks")
        if (growth := seen.growth()) > GROWTH and not self.options.short:
            seen.fault(f"memory grew by {growth:.1%}")
        return int(bool(seen.faults))


def _alive(process: int) -> bool:
    """Whether it has not ended, its parent told of that or not."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _memory(process: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _alone(bodies: list[dict[str, Any]]) -> Iterator[str]:
    with load(TINY_GGUF, threads=1, context=CONTEXT) as engine:
        for body in bodies:
            sampling = Sampling(body["temperature"], repeat_penalty=body["repeat_penalty"], seed=body["seed"])
            yield engine.generate(body["prompt"], Options(sampling, body["max_tokens"], ignore_eos=True)).run()


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--ray", type=int, metavar="N", help="Replicas on a Ray cluster (default: one engine)")
    parser.add_argument("--hostile", type=float, default=0.7, help="The share of hostile requests")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS], help="Of hostile requests")
    parser.add_argument("--without", nargs="+", choices=KINDS, default=[], help="Kinds to leave out")
    parser.add_argument("--minutes", type=float, default=12.0, help="After which no request is sent")
    parser.add_argument("--port", type=int, default=8195)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.kinds = [kind for kind in options.kinds if kind not in options.without]
    options.short = options.requests < 2000  # too few to judge memory by
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        bodies = requests(ORDINARY, options.seed, MOST_TOKENS)
        texts = [*_alone(bodies)]
        write_synthetic_mmproj("mmproj-tiny-moe", tower := Path(folder) / "tower.gguf", quant="F32")
        given = ["--mmproj", str(tower), "--ctx-size", str(CONTEXT), "--max-sequences", "8"]
        given += ["--kv-memory", "24M"]  # which a cache fills within the first tenth of the requests
        given += [] if options.ray is None else ["--replicas", str(options.ray)]
        with server(TINY_GGUF, options.port, *given) as found:
            soak = Soak(found, bodies, texts, options, {found.process.pid, *replica_ids()})
            asyncio.run(soak.run())
            try:
                urllib.request.urlopen(f"{found.address}/health", timeout=60)
            except OSError as error:
                soak.seen.fault(f"the server is not well in the end: {error}")
            return soak.report()


if __name__ == "__main__":
    sys.exit(main())
