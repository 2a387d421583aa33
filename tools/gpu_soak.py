"""Mixed requests, after which as much of a GPU's memory is in use as before: `python tools/gpu_soak.py MODEL.gguf`.

Prints the bytes in use after each round of requests; ends with a status of 1 where they have grown.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.device.cuda.device import CudaDevice

CLIENTS = 12
MOST = 4_000_000
"""Bytes by which the memory in use may grow."""


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


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    engine = load(options.model, device="cuda", sequences=8, context=8192)
    device = engine.model.device
    assert isinstance(device, CudaDevice)

    def used() -> int:
        free, total = device.functions.free_memory()
        return total - free

    samples = mixed(engine, options.seconds, used, options.seed)
    print(
        f"in use after each round, MB: {[round(sample / 1e6) for sample in samples]}; grown by {growth(samples)} bytes"
    )
    return int(growth(samples) > MOST)


if __name__ == "__main__":
    sys.exit(main())
