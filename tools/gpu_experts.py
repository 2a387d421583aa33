"""Times models that do not fit on a GPU: `python tools/gpu_experts.py even.gguf zipf.gguf --prompt 2048`.

For budgets of 8, 12, 16 and 24 GiB (`--budgets`), for one that an allocation beside the engine leaves (`--left`), for
budgets that hold shares of the routed experts (`--shares 1,0.5,0`) and for those that leave layers to the CPU
(`--layers 8,32`). Prints for each what lies where, times of prompts, verifies and drafts, tokens a second of one and of
four requests, without drafts and with such that are right at a rate of `--accept`, and a hash of all tokens and of the
prompt's logits, which must be one for all budgets of a model. Random routers choose evenly; so time a model with a
skewed one, too:

    trigraph synth qwen3.6-35b-a3b even.gguf
    trigraph synth qwen3.6-35b-a3b zipf.gguf --skew 1

What was used is remembered beside the package, from one budget to the next. With `--synth 20` the tool writes both
itself, with so many layers (40: all, 22 GB each). Ends with a status of 1 where hashes differ.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from gpu_session import CLI
from support.devices.placed import budget_for, budget_for_layers, source_of
from trigraph.custom_ops import library_path
from trigraph.exporter import ExportOptions
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, load
from trigraph.runtime.bench.completions import greedy_completion
from trigraph.runtime.bench.random_tokens import RandomTokens
from trigraph.runtime.bench.replay import replaying
from trigraph.runtime.bench.sample import seconds
from trigraph.runtime.cli.arguments import parse_bytes
from trigraph.runtime.device.cuda.library import CudaLibrary
from trigraph.runtime.drafting.acceptance import Acceptance
from trigraph.runtime.drafting.choice import Governor
from trigraph.runtime.engine.config import EngineConfig
from trigraph.runtime.engine.package_cache import cached_package
from trigraph.runtime.execution.executor import Executor
from trigraph.runtime.requests.draft_length import AdaptiveLength, FixedLength
from trigraph.runtime.requests.request import Request
from trigraph.runtime.sampling.sampling import Sampler, Sampling
from trigraph.runtime.scheduler.speculation import decode
from trigraph.runtime.state.sequence import Sequence

MOST = 4  # requests at once


@dataclass(frozen=True)
class Prompted:
    """A prompt that was computed, and the token behind it. Others go on from forks of the sequence."""

    prompt: list[int]
    sequence: Sequence
    token: int


@dataclass(frozen=True)
class Budget:
    """What the engine may take: by the option, or because others hold the rest."""

    name: str
    nbytes: int
    held: bool = False


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--synth", type=int, help="Layers of the 35B-A3B; times it with even and skewed choices")
    parser.add_argument("--budgets", default="8G,12G,16G,24G")
    parser.add_argument("--left", default="12G", help="What an allocation of the rest leaves")
    parser.add_argument("--shares", default="")
    parser.add_argument("--layers", default="")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--accept", type=float, default=0.8)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = [*options.models, *(synthetic(Path(folder), options.synth) if options.synth else ())]
        hashes = [{time_budget(*each, options) for each in cases(path, options)} for path in models]
    for path, found in zip(models, hashes, strict=True):
        print(f"{path.name}: {'one hash' if len(found) == 1 else f'DIFFERENT: {found}'}")
    return int(any(len(found) != 1 for found in hashes))


def synthetic(folder: Path, layers: int) -> list[Path]:
    """The model with even and with skewed choices."""
    skews = {folder / "even.gguf": "0", folder / "zipf.gguf": "1"}
    for path, skew in skews.items():
        few = ("--layers", str(layers), "--skew", skew)
        subprocess.run([sys.executable, *CLI, "synth", "qwen3.6-35b-a3b", path, *few], check=True)
    return [*skews]


def cases(path: Path, options: argparse.Namespace) -> Iterator[tuple[Path, Budget, EngineConfig]]:
    """The package, budgets and settings of a model."""
    package = cached_package(path, ExportOptions()).folder
    context = options.prompt + 2 * options.tokens + 512
    config = EngineConfig(device="cuda", threads=options.threads, context=context, sequences=MOST)
    print(f"\n{path.name}", flush=True)
    budgets, left, shares, layers = (
        [part for part in given.split(",") if part]
        for given in (options.budgets, options.left, options.shares, options.layers)
    )
    found = [Budget(f"budget {text}", parse_bytes("--budgets", text) or 0) for text in budgets]
    found += [Budget(f"all but {text} is taken", parse_bytes("--left", text) or 0, held=True) for text in left]
    found += [Budget(f"share {share}", budget_for(package, float(share), context, MOST)) for share in shares]
    found += [Budget(f"layers {count}", budget_for_layers(package, int(count), context, MOST)) for count in layers]
    return ((package, budget, config) for budget in found)


def time_budget(package: Path, budget: Budget, config: EngineConfig, options: argparse.Namespace) -> str:
    """Times one budget; the hash of all its tokens and of a prompt's logits."""
    gpu = CudaLibrary(library_path("cuda"))
    _, total = gpu.free_memory()
    if budget.nbytes > total:
        raise TrigraphError(f"{budget.name}: the GPU has {total / 1e9:.1f} GB")
    with taken(gpu, budget):
        started = time.perf_counter()
        engine = load(package, config if budget.held else replace(config, gpu_memory=budget.nbytes))
        took = time.perf_counter() - started
        print(f"\n{budget.name}: {budget.nbytes / 1e9:.2f} GB, loaded in {took:.1f} s")
        print(*[notice for notice in engine.model.notices if "GPU" in notice], sep="\n", flush=True)
        print(predicted(engine, options.prompt), flush=True)
        prompts = [RandomTokens(engine.steps.vocab).draw(options.prompt)[i:] for i in range(MOST)]
        digest = hashlib.sha256()
        times, prompted = [], list[Prompted]()
        for prompt in (prompts[0], *prompts):
            started = time.perf_counter()
            prompted.append(computed(engine, prompt, digest))
            times.append(time.perf_counter() - started)
            if len(times) == 1:  # which also made room
                engine.steps.release(prompted.pop().sequence)
        steps = {"prompt": times[1]} | verifies(engine, prompted[0])
        print(", ".join(f"{name} {took * 1e3:.2f} ms" for name, took in steps.items()), flush=True)
        for count in (1, MOST):
            time_completions(engine, prompted[:count], digest, options)
        report(engine)
        free, _ = gpu.free_memory()
        print(f"GPU memory in use, by all: {(total - free) / 1e9:.2f} GB; hash {digest.hexdigest()[:16]}", flush=True)
        engine.close()
    return digest.hexdigest()[:16]


def predicted(engine: Engine, tokens: int) -> str:
    """What copies of the host's experts take of a prompt, by their bytes; 250 to 500 ms for 2,048 tokens in 12 GiB."""
    share, steps = source_of(engine).share, -(-tokens // engine.steps.chunk)
    nbytes = 0 if share is None else steps * share.host_bytes
    rates = ", ".join(f"{nbytes / rate / 1e6:,.0f} ms at {rate} GB/s" for rate in (50, 25))
    return f"copies for a prompt of {tokens:,}, by count: {nbytes / 1e9:.1f} GB, {rates}"


@contextmanager
def taken(gpu: CudaLibrary, budget: Budget) -> Iterator[None]:
    """Others hold all but the budget, where it is to be so."""
    free, _ = gpu.free_memory()
    address = gpu.allocate(free - budget.nbytes) if budget.held else None
    try:
        yield
    finally:
        if address is not None:
            gpu.free(address, False)


def computed(engine: Engine, prompt: list[int], digest: hashlib._Hash) -> Prompted:
    """A prompt and its token."""
    sequence = engine.steps.new_sequence()
    result = engine.steps.prefill([sequence], [prompt])
    digest.update(result.logits[0].tobytes())
    return Prompted(prompt, sequence, Sampler(Sampling(temperature=0), prompt).pick(result, 0, len(prompt)))


def verifies(engine: Engine, prompted: Prompted) -> dict[str, float]:
    """Median seconds of decodes and verifies behind the prompt, with other tokens each time, and of a draft."""
    found: dict[str, float] = {}
    random, sequence = RandomTokens(engine.steps.vocab), engine.steps.fork(prompted.sequence)
    for count in (1, 2, 4, 8):
        times = []
        for _ in range(12):
            times.append(seconds(partial(engine.steps.verify, [sequence], [random.draw(count)])))
            engine.steps.keep(sequence, count)
        found[f"verify of {count}"] = statistics.median(times[4:])
    if engine.steps.can_draft:
        times = [seconds(partial(engine.steps.draft, [sequence], [3])) for _ in range(12)]
        found["draft"] = statistics.median(times[4:])
    engine.steps.release(sequence)
    return found


def time_completions(
    engine: Engine, prompted: list[Prompted], digest: hashlib._Hash, options: argparse.Namespace
) -> None:
    """Tokens a second of requests together, greedy, without their prompts: plain, and with drafts. The best of two.

    Raises RuntimeError where drafts change a text.
    """
    executor, longest = engine.executor, engine.steps.max_pending - 1
    plain = [completed(engine, executor, prompted, options.tokens, partial(FixedLength, 0, "plain")) for _ in range(2)]
    texts = plain[0][1]
    digest.update(repr(texts).encode())
    found = {"plain": plain}
    if engine.steps.can_draft:
        known = [[*each.prompt, *text] for each, text in zip(prompted, texts, strict=True)]
        drafts = replaying(executor, known, options.accept)
        length = partial(AdaptiveLength, Acceptance(longest), longest)
        found[f"drafts right at {options.accept}"] = [
            completed(engine, drafts, prompted, options.tokens, length) for _ in range(2)
        ]
    tokens = len(prompted) * options.tokens
    rates = {name: tokens / min(took for took, _ in runs) for name, runs in found.items()}
    print(f"{len(prompted)} at once:", ", ".join(f"{name} {rate:.1f} tokens/s" for name, rate in rates.items()))
    if any(given != texts for runs in found.values() for _, given in runs):
        raise RuntimeError("a text has changed from one run to the next: this is a defect, please report it")


def completed(
    engine: Engine,
    executor: Executor,
    prompted: list[Prompted],
    tokens: int,
    length: Callable[[], AdaptiveLength | FixedLength],
) -> tuple[float, list[list[int]]]:
    """Seconds of completions behind their prompts, and their tokens."""
    requests = []
    for each in prompted:
        completion = greedy_completion(engine, each.prompt, tokens)
        completion.push(each.token)
        sampler, sequence = Sampler(completion.options.chosen_by, each.prompt), engine.steps.fork(each.sequence)
        requests.append(Request(completion, sampler, length(), sequence, each.token))
    took = seconds(lambda: [*decode(executor, requests, Governor())])
    for request in requests:
        engine.steps.release(request.state)
    return took, [request.completion.ids for request in requests]


def report(engine: Engine) -> None:
    """Prints how many experts moved."""
    if (moving := source_of(engine).moving) is not None:
        print(f"{moving.moved} experts moved")


if __name__ == "__main__":
    sys.exit(main())
