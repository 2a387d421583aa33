"""Streams that move between replicas: `python tools/draining.py --requests 1000 --replicas 3 --every 5`.

While clients stream from a Ray cluster, fewer replicas are wanted and then more again: those that drain give their
streams away. With `--stay 50` instead, replicas stay, and each gives a stream away after 50 tokens. Prints how many
texts, or logits' bits, differ from those of one engine, and how long streams paused. Ends with a status of 1 when one
differs.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from ray import serve

from replicas import p95, requests
from support.servers.held import RestlessReplica
from support.servers.ray_cluster import NAME, engines
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Options, Sampling, load
from trigraph.runtime.requests.recording import RecordedRow
from trigraph.runtime.server.cluster import deployment
from trigraph.runtime.server.cluster.deployment import Deployed
from trigraph.runtime.server.cluster.remote_engine import RemoteEngine
from trigraph.runtime.server.cluster.replica import Ticket, Update


@dataclass
class Stream:
    """What became of one: its text, seconds between its updates, and how it moved."""

    text: str = ""
    rows: list[RecordedRow] = field(default_factory=list)
    longest: float = 0.0
    """Pause, without those of moves."""
    tickets: list[Ticket] = field(default_factory=list)
    moves: list[float] = field(default_factory=list)
    """From the last update of a replica to the first one of the next."""
    last: float | None = None

    def arrived(self, ticket: Ticket) -> None:
        """Takes note of an update."""
        now = time.monotonic()
        if self.last is not None and self.tickets[-1] is not ticket:
            self.moves.append(now - self.last)
        elif self.last is not None:
            self.longest = max(self.longest, now - self.last)
        if self.tickets[-1:] != [ticket]:
            self.tickets.append(ticket)
        self.last = now


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=TINY_GGUF)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=120, help="Most tokens of a completion; at least half of them")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--spared", type=int, default=1, help="How many replicas are wanted at least")
    parser.add_argument("--every", type=float, default=5.0, help="Seconds between changes of their number")
    parser.add_argument("--stay", type=int, help="Tokens that a stream gets at a replica; their number stays")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    bodies = requests(options.requests, options.seed, options.tokens)
    alone = load(options.model, threads=1)
    asked = [(alone.tokenizer.encode(body["prompt"]), _options(body)) for body in bodies]
    kept = [alone.submit(prompt, option) for prompt, option in asked]
    expected = [(request.result(), request.rows) for request in kept]
    alone.close()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (sys.path[0], os.environ.get("PYTHONPATH"))))
    restless = {"every": options.stay} if options.stay else {}
    patched = patch.object(deployment, "EngineReplica", RestlessReplica) if restless else nullcontext()
    with patched, engines(options.model, options.replicas, sequences=8, **restless) as engine:
        found = asyncio.run(_streamed(engine, asked, options))
    wrong = sum(each != (stream.text, stream.rows) for each, stream in zip(expected, found, strict=True))
    show(found, wrong)
    return int(wrong > 0)


def show(found: list[Stream], wrong: int) -> None:
    """Prints sums."""
    moved = [stream for stream in found if stream.moves]
    tickets = [ticket for stream in found for ticket in stream.tickets[1:]]
    others = sum(len({*ticket.lost}) == len(ticket.lost) for ticket in tickets)
    rows = sum(len(stream.rows) for stream in found)
    print(f"{len(found)} streams, the logits of {rows} tokens compared too; {wrong} differ")
    print(
        f"{len(moved)} moved, at least {min(len(stream.moves) for stream in found)} times each; {len(tickets)} moves, "
        f"{sum(ticket.state is not None for ticket in tickets)} with state, "
        f"{others} of them from a replica that the stream had not been at before"
    )
    for name, pauses in (
        ("longest pause of a stream, moves apart", [stream.longest for stream in found]),
        ("pause of a move", [pause for stream in found for pause in stream.moves]),
    ):
        if pauses:
            print(
                f"{name}: median {statistics.median(pauses) * 1e3:.0f} ms, p95 {p95(pauses) * 1e3:.0f} ms, "
                f"at most {max(pauses) * 1e3:.0f} ms"
            )


def _options(body: dict[str, Any]) -> Options:
    sampling = Sampling(temperature=body["temperature"], repeat_penalty=body["repeat_penalty"], seed=body["seed"])
    return Options(sampling, max_tokens=body["max_tokens"], ignore_eos=True, receipt=body["seed"] % 3 > 0)


async def _streamed(
    engine: RemoteEngine, asked: list[tuple[list[int], Options]], options: argparse.Namespace
) -> list[Stream]:
    found = [Stream() for _ in asked]
    complete, current = engine.replicas.complete, ContextVar[Stream]("current")

    async def recorded(ticket: Ticket) -> AsyncGenerator[Update, None]:
        async with aclosing(complete(ticket)) as updates:
            async for update in updates:
                current.get().arrived(ticket)
                yield update

    engine.replicas.complete = recorded  # type: ignore[method-assign]
    left = iter(range(len(asked)))

    async def client() -> None:
        for number in left:
            current.set(found[number])
            request = engine.generate(*asked[number])
            async for piece in request:
                found[number].text += piece
            found[number].rows = request.rows

    async def drain() -> None:
        for number in itertools.count():
            await asyncio.sleep(options.every)
            wanted = options.spared if number % 2 == 0 else options.replicas
            deployed = Deployed(str(options.model), wanted, None, {"threads": 1, "sequences": 8}).application()
            await asyncio.to_thread(serve.run, deployed, name=NAME, route_prefix=None)

    draining = None if options.stay else asyncio.create_task(drain())
    try:
        await asyncio.gather(*(client() for _ in range(options.clients)))
    finally:
        if draining is not None:
            draining.cancel()
    return found


if __name__ == "__main__":
    sys.exit(main())
