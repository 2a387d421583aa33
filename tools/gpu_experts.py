"""Times a model that does not fit: `python tools/gpu_experts.py MODEL [--shares 1,0.5,0] [--layers 8,32]`.

Loads it with budgets that hold these shares of the routed experts, and with those that leave so many layers to the CPU.
Prints for each what lies where, times of prompts, decodes and verifies, tokens a second of completions, and a hash of a
text, which must be one for all of them.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.placed import budget_for, budget_for_layers
from trigraph.exporter import ExportOptions
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.bench.completions import time_completions
from trigraph.runtime.bench.options import BenchOptions
from trigraph.runtime.bench.random_tokens import RandomTokens
from trigraph.runtime.config import EngineConfig
from trigraph.runtime.device.cuda import CudaDevice
from trigraph.runtime.package_cache import cached_package


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--shares", default="1,0.5,0.1,0")
    parser.add_argument("--layers", default="")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    package = cached_package(options.model, ExportOptions()).folder
    context, sequences = 2 * options.prompt + 1024, 4
    shares, layers = ([part for part in given.split(",") if part] for given in (options.shares, options.layers))
    budgets = {
        **{f"share {share}": budget_for(package, float(share), context, sequences) for share in shares},
        **{f"layers {count}": budget_for_layers(package, int(count), context, sequences) for count in layers},
    }
    config = EngineConfig(device="cuda", threads=options.threads, context=context, sequences=sequences)
    hashes = {time_budget(package, name, replace(config, gpu_memory=budgets[name]), options) for name in budgets}
    print("one hash" if len(hashes) == 1 else f"DIFFERENT: {hashes}")


def time_budget(package: Path, name: str, config: EngineConfig, options: Any) -> str:
    """One budget; the hash of its text."""
    started = time.perf_counter()
    engine = load(package, config)
    budget = config.gpu_memory or 0
    print(f"\n{name}: budget {budget / 1e9:.2f} GB, loaded in {time.perf_counter() - started:.1f} s")
    print(*[notice for notice in engine.model.notices if "GPU" in notice], sep="\n")
    prompt = RandomTokens(engine.steps.vocab).draw(options.prompt)
    steps = {"prefill": prefill(engine, prompt)} | verifies(engine, prompt)
    print(", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in steps.items()), flush=True)
    bench = BenchOptions(tokens=options.tokens, repetitions=8, accept=0.8)
    for timing in time_completions(engine, prompt, bench):
        seconds = min(sample.seconds for sample in timing.samples)
        print(f"completion, {timing.note}: {options.tokens / seconds:.1f} tokens/s")
    requests = [
        engine.submit(prompt[i:], Options(Sampling(temperature=0), max_tokens=options.tokens, ignore_eos=True))
        for i in range(4)
    ]
    started = time.perf_counter()
    texts = [request.ids for request in requests if request.result() is not None]
    print(f"four requests with their prompts: {4 * options.tokens / (time.perf_counter() - started):.1f} tokens/s")
    device = engine.model.device
    assert isinstance(device, CudaDevice)
    free, total = device.functions.free_memory()
    found = hashlib.sha256(repr(texts).encode()).hexdigest()[:16]
    print(f"GPU memory in use: {(total - free) / 1e9:.2f} GB; hash {found}", flush=True)
    return found


def prefill(engine: Engine, prompt: list[int]) -> float:
    """Seconds of a prompt, the second time."""
    times = []
    for _ in range(2):
        sequence = engine.steps.new_sequence()
        times.append(seconds(partial(engine.steps.prefill, [sequence], [prompt])))
        engine.steps.release(sequence)
    return times[-1]


def verifies(engine: Engine, prompt: list[int]) -> dict[str, float]:
    """Median seconds of decodes and verifies behind the prompt, with other tokens each time, and of a draft."""
    found: dict[str, float] = {}
    random, sequence = RandomTokens(engine.steps.vocab), engine.steps.new_sequence()
    engine.steps.prefill([sequence], [prompt])
    for count in (1, 2, 4, 8):
        times = []
        for _ in range(12):
            times.append(seconds(partial(engine.steps.verify, [sequence], [random.draw(count)])))
            engine.steps.keep(sequence, count)
        found[f"verify of {count}"] = statistics.median(times[4:])
    times = [seconds(partial(engine.steps.draft, [sequence], [3])) for _ in range(12)]
    found["draft"] = statistics.median(times[4:])
    engine.steps.release(sequence)
    return found


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
