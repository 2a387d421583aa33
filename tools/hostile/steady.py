"""Ordinary streams beside a soak, in a process of their own, which nothing that hostile clients compute holds up."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from replicas import pieces

NOTED = 0.5  # seconds of a gap


@dataclass(frozen=True)
class Gap:
    """A gap of a stream that goes on."""

    seconds: float


@dataclass(frozen=True)
class Stream:
    """A stream that has ended."""

    number: int
    """Of its body."""
    text: str
    first: float
    """Seconds until its first text."""
    gap: float
    """Its longest gap, in seconds."""
    error: str | None = None


def watch(address: str, bodies: list[dict[str, Any]], streams: int, limit: float, found: Connection) -> None:
    """Streams without end, so many at any time, of which each has at most `limit` seconds; sends what it sees of each
    stream."""

    async def run() -> None:
        await asyncio.gather(*(_steady(address, bodies, number, limit, found) for number in range(streams)))

    asyncio.run(run())


async def _steady(address: str, bodies: list[dict[str, Any]], number: int, limit: float, found: Connection) -> None:
    while True:
        number = (number + 1) % len(bodies)
        started = last = time.monotonic()
        text, first, longest = "", 0.0, 0.0
        stream = pieces(address, "/v1/completions", bodies[number])
        try:
            async with asyncio.timeout(limit), aclosing(stream):
                async for piece, _ in stream:
                    now = time.monotonic()
                    if text:
                        longest = max(longest, now - last)
                        if now - last > NOTED:
                            found.send(Gap(now - last))
                    elif piece:
                        first = now - started
                    last, text = now, text + piece
        except Exception as error:
            found.send(Stream(number, text, first, longest, f"{error!r}"[:500]))
            await asyncio.sleep(1)
        else:
            found.send(Stream(number, text, first, longest))
