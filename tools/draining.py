"""Streams that move between replicas: `python tools/draining.py --requests 1000 --replicas 3 --every 5`.

While clients stream from a Ray cluster, fewer replicas are wanted and then more again: those that drain give their
streams away. Prints how many texts differ from those of one engine, and how long streams paused. Ends with a status of
1 when one differs.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from ray import serve

from replicas import p95, requests
from support.ray_cluster import NAME, engines
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Options, Sampling, load
from trigraph.runtime.server.cluster.deployment import Deployed
from trigraph.runtime.server.cluster.remote_engine import RemoteEngine
from trigraph.runtime.server.cluster.replica import Ticket, Update


@dataclass
class Moved:
    """What became of streams: their texts, the longest pause of each in seconds, and their moves, with state or not."""

    texts: list[str]
    pauses: list[float]
    tickets: list[Ticket]


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=TINY_GGUF)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=120, help="Most tokens of a completion")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--spared", type=int, default=1, help="How many replicas are wanted at least")
    parser.add_argument("--every", type=float, default=5.0, help="Seconds between changes of their number")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    bodies = requests(options.requests, options.seed, options.tokens)
    alone = load(options.model, threads=1)
    asked = [(alone.tokenizer.encode(body["prompt"]), _options(body)) for body in bodies]
    expected = [request.result() for request in [alone.submit(prompt, option) for prompt, option in asked]]
    alone.close()
    with engines(options.model, options.replicas, sequences=8) as engine:
        found = asyncio.run(_streamed_while_draining(engine, asked, options))
    wrong = sum(a != b for a, b in zip(expected, found.texts, strict=True))
    stayed = [pause for pause, ticket in zip(found.pauses, found.tickets, strict=True) if not ticket.completed]
    went = [pause for pause, ticket in zip(found.pauses, found.tickets, strict=True) if ticket.completed]
    with_state = sum(ticket.state is not None for ticket in found.tickets if ticket.completed)
    print(f"{len(bodies)} streams, {len(went)} moved, {with_state} of them with state at last; {wrong} differ")
    for name, pauses in (("stayed", stayed), ("moved", went)):
        if pauses:
            middle, late = statistics.median(pauses), p95(pauses)
            print(f"longest pause of a stream that {name}: median {middle:.2f} s, p95 {late:.2f} s")
    return int(wrong > 0)


def _options(body: dict[str, Any]) -> Options:
    sampling = Sampling(temperature=body["temperature"], repeat_penalty=body["repeat_penalty"], seed=body["seed"])
    return Options(sampling, max_tokens=body["max_tokens"], ignore_eos=True)


async def _streamed_while_draining(
    engine: RemoteEngine, asked: list[tuple[list[int], Options]], options: argparse.Namespace
) -> Moved:
    found = Moved([""] * len(asked), [0.0] * len(asked), [])
    tickets: dict[int, Ticket] = {}
    complete, current = engine.replicas.complete, ContextVar[int]("current")

    def recorded(ticket: Ticket) -> AsyncGenerator[Update, None]:
        tickets[current.get()] = ticket
        return complete(ticket)

    engine.replicas.complete = recorded  # type: ignore[method-assign]
    left = iter(range(len(asked)))

    async def client() -> None:
        for number in left:
            current.set(number)
            last = None
            async for piece in engine.generate(*asked[number]):
                found.texts[number] += piece
                now = time.monotonic()
                found.pauses[number] = max(found.pauses[number], now - (last or now))
                last = now

    async def drain() -> None:
        for number in itertools.count():
            await asyncio.sleep(options.every)
            wanted = options.spared if number % 2 == 0 else options.replicas
            deployed = Deployed(str(options.model), wanted, None, {"threads": 1, "sequences": 8}).application()
            await asyncio.to_thread(serve.run, deployed, name=NAME, route_prefix=None)

    draining = asyncio.create_task(drain())
    try:
        await asyncio.gather(*(client() for _ in range(options.clients)))
    finally:
        draining.cancel()
    found.tickets = [tickets[number] for number in range(len(asked))]
    return found


if __name__ == "__main__":
    sys.exit(main())
