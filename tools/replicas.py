"""What replicas promise, on one machine: streams outlive them, and how fast they are.

    python tools/replicas.py kills --requests 300 --clients 16 --replicas 3 --every 3
    python tools/replicas.py throughput MODEL.gguf
    python tools/replicas.py routing

Each starts `trigraph serve` with replicas of one thread on a Ray cluster of its own. Runs for minutes, outside the test
suite; prints figures, and ends with a status of 1 when a stream was not what one engine says.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.servers.ray_cluster import MARK, engines, kill, serving_ids
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Options, Sampling
from trigraph.runtime.server.cluster.remote_engine import RemoteEngine
from trigraph.runtime.server.cluster.replica import Ticket, Update
from trigraph.runtime.server.cluster.replicas import RayReplicas

START_SECONDS = 300.0  # on a machine that does much else
WORDS = ("And", "it", "came", "to", "pass", "when", "the", "king", "heard", "words", "of", "captain", "unto", "them")


@dataclass
class Server:
    """A front: its process, its address, and what it logs."""

    process: subprocess.Popen[str]
    address: str
    log: Path

    @property
    def seconds(self) -> float:
        """Processor time of the front so far, all of its threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(model: Path, port: int, *arguments: str) -> Iterator[Server]:
    """`trigraph serve` while the block runs."""
    os.environ[MARK] = str(uuid.uuid4())
    log = Path(f"/tmp/replicas-{port}.log")
    command = [sys.executable, "-m", "trigraph.runtime", "serve", str(model), "--port", str(port), "--threads", "1"]

    def started() -> subprocess.Popen[str]:
        with log.open("w") as stderr:
            return subprocess.Popen([*command, "-v", *arguments], stderr=stderr, stdout=stderr, text=True)

    process = started()
    try:
        deadline = time.monotonic() + START_SECONDS
        address = f"http://127.0.0.1:{port}"
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise SystemExit(f"the server does not start:\n{log.read_text()}") from None
                if process.poll() is not None:
                    if "timed out during startup" not in log.read_text():  # Ray gives its node 30 seconds
                        raise SystemExit(f"the server does not start:\n{log.read_text()}") from None
                    process = started()
                time.sleep(0.2)
        yield Server(process, address, log)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


@asynccontextmanager
async def posted(address: str, path: str, body: dict[str, Any]) -> AsyncIterator[asyncio.StreamReader]:
    """The response to a request, from its body on: without a library, so that clients take little time."""
    host, _, port = address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    try:
        writer.write(head.encode() + data)
        status = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in status.split(b"\r\n")[0]:
            raise RuntimeError(f"{status!r} {await reader.read()!r}")
        yield reader
    finally:
        writer.close()


async def pieces(address: str, path: str, body: dict[str, Any]) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
    """The texts of a stream as they come, each with its usage. Raises RuntimeError when the stream is not whole."""
    ended = False
    async with posted(address, path, {**body, "stream": True, "stream_options": {"include_usage": True}}) as reader:
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise RuntimeError(str(chunk))
                texts = (each.get("text") or each.get("delta", {}).get("content") or "" for each in chunk["choices"])
                yield "".join(texts), chunk.get("usage") or {}
            ended = ended or line.startswith(b"data: [DONE]")
    if not ended:
        raise RuntimeError("the stream broke off")


async def streamed(address: str, path: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The text of a stream, and its usage. Raises RuntimeError when it is not whole."""
    text, usage = "", dict[str, Any]()
    async with aclosing(pieces(address, path, body)) as stream:
        async for piece, used in stream:
            text, usage = text + piece, used or usage
    return text, usage


def requests(count: int, seed: int, tokens: int) -> list[dict[str, Any]]:
    """Bodies of requests for completions, greedy and sampled, of prompts that share beginnings."""
    rng = random.Random(seed)
    beginnings = ["The LORD is my shepherd; I shall not want. " * 4, "It was a dark night; ", ""]
    return [
        {
            "prompt": rng.choice(beginnings) + " ".join(rng.choices(WORDS, k=rng.choice([3, 12, 40]))),
            "max_tokens": rng.randint(tokens // 2, tokens),
            "temperature": rng.choice([0.0, 0.8, 1.0]),
            "repeat_penalty": rng.choice([1.0, 1.1]),
            "seed": number,
            "ignore_eos": True,
        }
        for number in range(count)
    ]


async def all_of(address: str, bodies: list[dict[str, Any]], clients: int) -> list[tuple[str, dict[str, Any]]]:
    """The answers, so many at once."""
    results: list[Any] = [None] * len(bodies)
    left = iter(range(len(bodies)))

    async def client() -> None:
        for number in left:
            results[number] = await streamed(address, "/v1/completions", bodies[number])

    await asyncio.gather(*(client() for _ in range(clients)))
    return results


def kills(options: argparse.Namespace) -> int:
    """Kills replicas while clients stream, and compares."""
    bodies = requests(options.requests, options.seed, options.tokens)
    with server(options.model, options.port, "--max-sequences", "8") as one:
        expected = asyncio.run(all_of(one.address, bodies, options.clients))
    killed = 0

    async def killer() -> None:
        nonlocal killed
        rng = random.Random(options.seed)
        while True:
            await asyncio.sleep(rng.uniform(0.5, 1.5) * options.every)
            if len(alive := serving_ids()) > options.spared:
                kill(rng.choice(alive))
                killed += 1

    async def run(address: str) -> list[tuple[str, dict[str, Any]]]:
        killing = asyncio.create_task(killer())
        try:
            return await all_of(address, bodies, options.clients)
        finally:
            killing.cancel()

    with server(options.model, options.port, "--max-sequences", "8", "--replicas", str(options.replicas)) as front:
        started = time.monotonic()
        found = asyncio.run(run(front.address))
        seconds = time.monotonic() - started
    pauses = [float(text) for text in re.findall(r"goes on after ([\d.]+) s", front.log.read_text())]
    wrong = sum(a[0] != b[0] for a, b in zip(expected, found, strict=True))
    uneven = sum(a[1]["completion_tokens"] != b[1]["completion_tokens"] for a, b in zip(expected, found, strict=True))
    print(f"{len(found)} streams at {options.clients} clients, {seconds:.0f} s; {killed} kills")
    print(f"streams that differ: {wrong}; with another number of tokens: {uneven}")
    if pauses:
        print(f"{len(pauses)} failovers, pause median {statistics.median(pauses):.2f} s, p95 {p95(pauses):.2f} s")
    return int(bool(wrong or uneven))


def p95(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


def throughput(options: argparse.Namespace) -> int:
    """Tokens a second of an engine in the front's process, and of replicas; processor time of the front."""
    bodies = requests(options.requests, options.seed, options.tokens)
    for replicas in options.counts:
        more = ("--replicas", str(replicas)) if replicas else ()
        with server(options.model, options.port, "--max-sequences", "8", *more) as front:
            asyncio.run(all_of(front.address, bodies[: options.clients], options.clients))  # warm
            before, started = front.seconds, time.monotonic()
            found = asyncio.run(all_of(front.address, bodies, options.clients))
            seconds, work = time.monotonic() - started, front.seconds - before
            tokens = sum(usage["completion_tokens"] for _, usage in found)
            print(
                f"{replicas or 'no'} replicas: {tokens} tokens, {tokens / seconds:.1f} a second; "
                f"process of the front: {1e6 * work / tokens:.0f} us a token, {work / seconds:.2f} cores",
                flush=True,
            )
    return 0


ROUTERS = {
    "by prefix": "trigraph.runtime.server.cluster.prefix_router.PrefixRouter",
    "consistent hash of the conversation": "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter",
    "power of two choices": "ray.serve._private.request_router.pow_2_router.PowerOfTwoChoicesRequestRouter",
}
CONVERSATION: ContextVar[str] = ContextVar("CONVERSATION")


class Sessions(RayReplicas):
    """Those of a deployment whose router goes by session."""

    def complete(self, ticket: Ticket) -> AsyncGenerator[Update, None]:
        return RayReplicas(self.handle.options(session_id=CONVERSATION.get())).complete(ticket)


async def conversation(engine: RemoteEngine, number: int, turns: int) -> tuple[int, int]:
    """Tokens of its prompts, and those that were found. One in five begins with the same rules."""
    CONVERSATION.set(f"conversation {number}")
    rng, total, reused = random.Random(number), 0, 0
    text = f"Rules of house {number % 5}: " + " ".join(random.Random(number % 5).choices(WORDS, k=100))
    for _ in range(turns):
        text += "\nQ: " + " ".join(rng.choices(WORDS, k=rng.choice([10, 40]))) + "\nA:"
        asked = Options(Sampling(temperature=0.8, seed=number), max_tokens=rng.choice([16, 48]), ignore_eos=True)
        stream = engine.generate(engine.tokenizer.encode(text), asked)
        text += "".join([piece async for piece in stream])
        total, reused = total + len(stream.prompt), reused + stream.reused
    return total, reused


def routing(options: argparse.Namespace) -> int:
    """Tokens of prompts that each router's replicas have already, in conversations of which some go on at once."""
    for name, router in ROUTERS.items():
        with engines(options.model, options.replicas, sequences=8, router=router) as engine:
            engine.replicas = Sessions(engine.replicas.handle)  # type: ignore[attr-defined]
            started = time.monotonic()
            total, reused = asyncio.run(conversations(engine, options.clients))
            seconds = time.monotonic() - started
            print(f"{name}: {reused / total:.1%} of {total} tokens were there, {seconds:.0f} s", flush=True)
    return 0


async def conversations(engine: RemoteEngine, clients: int) -> tuple[int, int]:
    limit = asyncio.Semaphore(clients)

    async def one(number: int) -> tuple[int, int]:
        async with limit:
            return await conversation(engine, number, 4)

    found = await asyncio.gather(*(one(number) for number in range(50)))
    return sum(total for total, _ in found), sum(reused for _, reused in found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kills", "throughput", "routing"])
    parser.add_argument("model", type=Path, nargs="?", default=TINY_GGUF)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=120, help="Most tokens of a completion")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--spared", type=int, default=1, help="How many replicas that have loaded are left")
    parser.add_argument("--every", type=float, default=3.0, help="Seconds between kills, on average")
    parser.add_argument("--counts", type=int, nargs="*", default=[0, 1, 2], help="Replicas; 0: no Ray")
    parser.add_argument("--port", type=int, default=8190)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    return {"kills": kills, "throughput": throughput, "routing": routing}[options.what](options)


if __name__ == "__main__":
    sys.exit(main())
