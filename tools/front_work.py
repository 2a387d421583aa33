"""What a front costs: processor time for a token where each update has one, with HTTP and all else.

    python tools/front_work.py --streams 16 --seconds 0.03

Its replicas compute nothing: each stream gets a token every so many seconds. Runs outside the test suite.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path

import ray

from replicas import Server, posted, server

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.paced import PacedReplica
from support.ray_cluster import NAME, engines
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime.server.cluster import deployment


async def stream(address: str, tokens: int) -> tuple[int, float]:
    """Events of a completion, and when the first came."""
    body = {"prompt": list(range(100, 130)), "max_tokens": tokens, "ignore_eos": True, "stream": True}
    started, events, first = time.perf_counter(), 0, 0.0
    async with posted(address, "/v1/completions", body) as reader:
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                events += 1
                first = first or time.perf_counter() - started
    return events - 1, first  # the last has no text


async def measure(front: Server, streams: int, tokens: int) -> None:
    await asyncio.gather(*(stream(front.address, 20) for _ in range(4)))  # warm
    before, started = front.seconds, time.perf_counter()
    found = await asyncio.gather(*(stream(front.address, tokens) for _ in range(streams)))
    work, seconds = front.seconds - before, time.perf_counter() - started
    total, events = streams * tokens, sum(events for events, _ in found)
    firsts = sorted(first for _, first in found)
    print(
        f"{total} tokens in {events} updates, {total / seconds:.0f} a second; first one after "
        f"{1000 * firsts[len(firsts) // 2]:.0f} ms; {1e6 * work / total:.0f} us of the front for a token: "
        f"{total / work:.0f} tokens a second on one core"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.03, help="Of a round")
    parser.add_argument("--tokens", type=int, default=200, help="Of a stream")
    parser.add_argument("--port", type=int, default=8190)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])
    deployment.EngineReplica = PacedReplica  # type: ignore[misc]
    with engines(TINY_GGUF, options.replicas, sequences=options.streams, seconds=options.seconds):
        address = ray.get_runtime_context().gcs_address
        with server(TINY_GGUF, options.port, "--ray-address", address, "--alias", NAME) as front:
            asyncio.run(measure(front, options.streams, options.tokens))


if __name__ == "__main__":
    main()
