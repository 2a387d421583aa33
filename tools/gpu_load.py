"""Loads for long stages of `gpu.py`: a server under clients, and mixed requests that may leave no memory behind.

`served` has the shape of the SGLang cookbook's benchmark: prompts of 8,192 tokens, completions of 1,024, 1 and 16
clients.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from trigraph.runtime import Engine, Options, Sampling
from trigraph.runtime.bench.load import Load

SERVE = ("-c", "from trigraph.runtime.cli.app import main; main()", "serve")
CLIENTS = 12
"""Of the mixed load."""


@dataclass(frozen=True)
class Stream:
    """What a client saw of a completion: seconds from its begin to each arrival, and its tokens."""

    arrivals: Sequence[float]
    tokens: int

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.arrivals[0]

    @property
    def longest_gap(self) -> float:
        """Seconds between two arrivals, at most."""
        return max((later - earlier for earlier, later in pairwise(self.arrivals)), default=0.0)

    @property
    def ms_a_token(self) -> float:
        """From the first token to the last one."""
        return 1e3 * (self.arrivals[-1] - self.first) / max(1, self.tokens - 1)


@dataclass(frozen=True)
class Figures:
    """Of all clients: medians, and the tokens a second of all together."""

    first_ms: float
    ms_a_token: float
    tokens_a_second: float
    longest_gap_ms: float
    """Between arrivals of a completion: what prompts of others cost it."""


@contextmanager
def serving(path: Path, device: str, context: int, sequences: int) -> Iterator[int]:
    """`trigraph serve` with a model in a process of its own, until the block ends; its port."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    sizes = ("--ctx-size", str(context), "--max-sequences", str(sequences))
    command = [sys.executable, *SERVE, path, "--device", device, "--port", str(port), "--ignore-eos", *sizes]
    server = subprocess.Popen([str(word) for word in command])
    try:
        _await(server, port)
        yield port
    finally:
        server.terminate()
        server.wait(60)


def _await(server: subprocess.Popen[bytes], port: int, limit: float = 300) -> None:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with status {server.returncode}")
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"the server was not ready after {limit:.0f} s")


def served(port: int, load: Load) -> Figures:
    """Serves the load: each client has a request in flight until there are none left."""
    started = time.monotonic()
    with ThreadPoolExecutor(load.concurrency) as clients:
        streams = list(clients.map(lambda prompt: _stream(port, prompt, load.tokens), load.prompts))
    seconds = time.monotonic() - started
    return Figures(
        1e3 * statistics.median(stream.first for stream in streams),
        statistics.median(stream.ms_a_token for stream in streams),
        sum(stream.tokens for stream in streams) / seconds,
        1e3 * statistics.median(stream.longest_gap for stream in streams),
    )


def _stream(port: int, prompt: Sequence[int], tokens: int) -> Stream:
    body = {"prompt": list(prompt), "max_tokens": tokens, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    started, arrivals, made = time.monotonic(), [], 0
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=600)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"the server answered {response.status}: {response.read(500)!r}")
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line.removeprefix(b"data: "))
            if event.get("usage"):
                made = event["usage"]["completion_tokens"]
            if event["choices"]:
                arrivals.append(time.monotonic() - started)
    if not arrivals or not made:
        raise RuntimeError("a completion came without tokens")
    return Stream(arrivals, made)


def mixed(engine: Engine, seconds: float, memory: Callable[[], int], seed: int) -> list[int]:
    """Requests of all lengths and kinds, some of them cancelled, for so long; bytes in use after each round of them.

    A round has the same requests as the one before, so that memory which is still taken late is lost.
    """
    used: list[int] = []
    deadline = time.monotonic() + seconds
    _largest(engine)
    while not used or time.monotonic() < deadline:
        draw = random.Random(seed)
        with ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(lambda number: _request(engine, random.Random(number)), draw.sample(range(10**6), 60)))
        used.append(memory())
    return used


def _largest(engine: Engine) -> None:
    """The steps that take the most memory: whole pieces of prompts, as many drafts as fit, and pieces of all sizes.

    A smaller piece may take more than a whole one, as attention divides a long text more where there are few rows.
    """
    steps, greedy, numbers = engine.model.steps, Sampling(temperature=0), itertools.count()
    context, sequences, pending = steps.state.limits.context, steps.state.sequences, steps.state.limits.max_pending

    def run(count: int, tokens: int, most: int, drafts: int) -> None:
        options = Options(greedy, most, ignore_eos=True, draft_tokens=drafts)
        with steps.lock:  # so that they begin in one round
            prompts = [[next(numbers), *[1] * (tokens // count - 1)] for _ in range(count)]
            requests = [engine.submit(prompt, options) for prompt in prompts]
        for request in requests:
            request.result()

    run(sequences, sequences * (context // 2), 1, 0)
    for drafts in (0, pending - 1):
        run(sequences, sequences * pending, 4 * pending, drafts)
    for tokens in range(32, steps.chunk + 1, 32):
        for count in (1, sequences):
            if tokens <= count * context:
                run(count, tokens - 1, 1, 0)


def _request(engine: Engine, draw: random.Random) -> None:
    longest = engine.model.steps.state.limits.context // 2
    prompt = [draw.randrange(engine.model.steps.vocab) for _ in range(min(longest, int(8 * 2 ** draw.uniform(0, 9))))]
    sampling = draw.choice(
        [Sampling(temperature=0), Sampling(seed=draw.randrange(99)), Sampling(seed=1, repeat_penalty=1.1)]
    )
    tokens, drafts = draw.choice([1, 16, 64, 128]), draw.choice([None, 0, 3])
    request = engine.submit(prompt, Options(sampling, min(tokens, longest), ignore_eos=True, draft_tokens=drafts))
    if draw.random() < 0.1:
        time.sleep(0.02)
        request.cancel()
    else:
        request.result()


def growth(used: Sequence[int]) -> int:
    """Bytes by which the last third of the samples exceeds the third before it; captures come in the first one."""
    third = max(1, len(used) // 3)
    return max(used[-third:]) - max(used[-2 * third : -third] or used[:1])
