"""Times one model on one machine: `python tools/gpu_model.py MODEL WORK ...`, for tools/gpu.py.

Prints each thing that was timed as a line of JSON, as it comes. WORK is any of these, in any order:

    hash            of what fixed tokens compute: the same wherever layers and experts lie
    prompt-N        a prompt of N tokens: the first one, and the best of two more, ms
    decode, verify-N, draft     steps after a prompt of --after tokens, ms
    sequences-N     a decode of N sequences, each after such a prompt, ms
    requests-N      tokens a second of N requests, without drafts and with such that are right at a rate of 0.8, as many
                    as are chosen, 1, or 3
    profile         the kernels of captured steps, by torch.profiler: us of a step, and how often

llama.cpp (--llama) knows prompts, decodes, verifies and sequences.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from gpu_llama import Llama

from trigraph.exporter import ExportOptions
from trigraph.runtime import Engine, load
from trigraph.runtime.bench.completions import greedy_completion
from trigraph.runtime.bench.contender import Trigraph
from trigraph.runtime.bench.random_tokens import RandomTokens
from trigraph.runtime.bench.replay import replaying
from trigraph.runtime.bench.sample import seconds
from trigraph.runtime.cli.arguments import parse_bytes
from trigraph.runtime.drafting.acceptance import Acceptance
from trigraph.runtime.drafting.choice import Governor
from trigraph.runtime.execution.executor import Executor
from trigraph.runtime.requests.draft_length import DraftLength, no_drafts
from trigraph.runtime.requests.request import Request
from trigraph.runtime.sampling.sampling import Sampler
from trigraph.runtime.scheduler.speculation import decode
from trigraph.runtime.state.sequence import Sequence as StateSequence

WARM, COUNTED, ENOUGH = 10, 20, 3.0
"""Calls that only warm up, those that count, and the seconds after which three of them are enough."""
LONG = 12.0
"""Seconds after which a prompt is repeated but once."""
EXPECTED = re.compile(r"should take ([\d.,]+) ms")
"""What the start says of a token."""
COMPLETION, RIGHT = 128, 0.8
"""Tokens, and the rate at which drafts are right."""
Prompted = tuple[list[int], StateSequence, int]
"""A prompt, its sequence, and the token behind it."""


def found(what: str, *figures: float, text: str = "") -> None:
    """Prints a row."""
    print(json.dumps({"what": what, "figures": figures, "text": text}), flush=True)


def median_ms(call: Callable[[], float]) -> float:
    """Of calls that return seconds."""
    started, times = time.monotonic(), list[float]()
    while len(times) < WARM + COUNTED and (len(times) < 4 or time.monotonic() - started < ENOUGH):
        times.append(call())
    return 1e3 * statistics.median(times[min(WARM, len(times) - 3) :])


class Ours:
    """trigraph, with sequences of random tokens. What it can do that llama.cpp cannot has the names of WORK."""

    def __init__(self, engine: Engine, after: int) -> None:
        self.engine, self.steps, self.after = engine, engine.steps, after
        self.random, self.batch = RandomTokens(engine.steps.vocab), list[StateSequence]()
        self.governor = Governor()

    def clear(self) -> None:
        """Empties all sequences."""
        while self.batch:
            self.steps.release(self.batch.pop())

    def prompt(self, sequence: int, count: int) -> float:
        """Seconds of a prompt, in the sequence behind those that are there."""
        self.batch.append(self.steps.new_sequence())
        tokens = self.random.draw(count)
        return seconds(lambda: self.steps.prefill([self.batch[sequence]], [tokens]))

    def step(self, counts: Sequence[int]) -> float:
        """Seconds of a step with so many tokens of each of the first sequences, which keep them."""
        batch, tokens = self.batch[: len(counts)], [self.random.draw(count) for count in counts]
        took = seconds(lambda: self.steps.verify(batch, tokens))
        for sequence, count in zip(batch, counts, strict=True):
            self.steps.keep(sequence, count)
        return took

    def hash(self, _: int) -> None:
        """Of the logits of a prompt and of a verify."""
        tokens = [7919 * (i + 1) * (i + 3) % self.steps.vocab for i in range(305)]
        sequence, digest = self.steps.new_sequence(), hashlib.sha256()
        digest.update(np.asarray(self.steps.prefill([sequence], [tokens[:300]]).logits).tobytes())
        digest.update(np.asarray(self.steps.verify([sequence], [tokens[300:]]).logits).tobytes())
        self.steps.release(sequence)
        found("hash", text=digest.hexdigest()[:16])

    def draft(self, _: int) -> None:
        """Of the MTP head."""
        if self.steps.can_draft:
            (one := Trigraph(self.engine)).prefill(self.random.draw(self.after))
            found("draft", median_ms(lambda: one.draft(3)))
            one.reset()

    def requests(self, count: int) -> None:
        """Completions, all of them at once."""
        prompted = list[Prompted]()
        for _ in range(count):
            tokens, sequence = self.random.draw(512), self.steps.new_sequence()
            prompted.append((tokens, sequence, int(self.steps.prefill([sequence], [tokens]).tokens[0])))
        executor, longest = self.engine.executor, self.steps.max_pending - 1
        runs = [self.completed(prompted, executor, partial(no_drafts, "plain")) for _ in range(2)]
        rates, texts = [max(rate for rate, _ in runs)], runs[0][1]
        if self.steps.can_draft:
            known = [[*tokens, *text] for (tokens, _, _), text in zip(prompted, texts, strict=True)]
            drafts, chosen = replaying(executor, known, RIGHT), partial(DraftLength, Acceptance(longest), longest)
            # The first ones also learn what steps cost.
            for length in (chosen, partial(chosen, fixed=1), partial(chosen, fixed=3)):
                drafted = [self.completed(prompted, drafts, length) for _ in range(4 if length is chosen else 2)]
                rates.append(max(rate for rate, _ in drafted))
                runs += drafted
        for _, sequence, _ in prompted:
            self.steps.release(sequence)
        if any(text != texts for _, text in runs):
            raise RuntimeError("a text has changed from one run to the next: this is a defect, please report it")
        found(f"tokens/s of {count} requests: plain, drafts right at {RIGHT}, 1 of them, 3", *rates)

    def completed(
        self, prompted: Sequence[Prompted], executor: Executor, length: Callable[[], DraftLength]
    ) -> tuple[float, list[list[int]]]:
        """Tokens a second of completions behind their prompts, and the tokens."""
        requests = []
        for prompt, sequence, first in prompted:
            completion = greedy_completion(self.engine, prompt, COMPLETION)
            completion.push(first)
            sampler, own = Sampler(completion.options.chosen_by, prompt), self.steps.fork(sequence)
            requests.append(Request(completion, sampler, length(), own, first))
        took = seconds(lambda: [*decode(executor, requests, self.governor)])
        for request in requests:
            self.steps.release(request.state)
        return len(requests) * COMPLETION / took, [request.completion.ids for request in requests]

    def profile(self, _: int) -> None:
        """A decode and a verify of 4, kernel by kernel."""
        from gpu_profile import profiled  # with PyTorch

        prompts(self, 1, self.after)
        for name, count in (("decode", 1), ("verify of 4", 4)):
            profiled(name, partial(self.step, [count]), found)


Timed = Ours | Llama


def prompts(timed: Timed, count: int, after: int) -> None:
    """So many sequences with so many tokens."""
    timed.clear()
    for sequence in range(count):
        timed.prompt(sequence, after)


def prompt(timed: Timed, count: int, _: int) -> None:
    """The first one, and the best of those after it."""
    started, times = time.monotonic(), list[float]()
    while len(times) < 2 or (len(times) < 3 and time.monotonic() - started < LONG):
        timed.clear()
        times.append(1e3 * timed.prompt(0, count))
    found(f"prompt of {count}", times[0], min(times[1:]))


def verify(timed: Timed, count: int, after: int) -> None:
    """A step of one sequence."""
    prompts(timed, 1, after)
    found("decode" if count == 1 else f"verify of {count}", median_ms(lambda: timed.step([count])))


def sequences(timed: Timed, count: int, after: int) -> None:
    """A decode of so many."""
    prompts(timed, count, after)
    found(f"decode of {count} sequences", median_ms(lambda: timed.step([1] * count)))


WORK = {"prompt": prompt, "decode": verify, "verify": verify, "sequences": sequences}
"""That both know; the number behind a word is 1 where there is none."""
STATES = {"sequences": 1, "requests": 2}
"""Sequences for each of a number: a request has one for its prompt and one for its text."""


def opened(options: argparse.Namespace, context: int, sequences: int) -> Ours:
    """trigraph, with what its start says of a token."""
    if "profile" in options.work:
        import torch  # before ONNX Runtime's provider, which then takes the same libraries

        if not torch.cuda.is_available():
            found("SKIPPED", text="this PyTorch sees no GPU")
            sys.exit()
        torch.zeros(1, device="cuda")
    started = time.monotonic()
    engine = load(
        options.model, device=options.device, gpu_memory=options.gpu_memory, sequences=sequences, context=context,
        options=ExportOptions(kv_type=options.kv_type),
    )  # fmt: skip
    found("seconds of loading", time.monotonic() - started)
    print(*engine.model.notices, sep="\n", file=sys.stderr, flush=True)
    for told in filter(None, map(EXPECTED.search, engine.model.notices)):
        found("a token, as the start expects", float(told[1].replace(",", "")))
    return Ours(engine, options.after)


def main() -> None:
    """The program. Work that fails does not stop the next, but makes the status 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("work", nargs="+")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gpu-memory", type=partial(parse_bytes, "--gpu-memory"))
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--after", type=int, default=4096)
    parser.add_argument("--llama", type=Path, help="the folder of llama.cpp's libraries, which is timed in our place")
    parser.add_argument("--host-experts", type=int, default=0, help="layers whose experts llama.cpp's CPU computes")
    options = parser.parse_args()
    words = [(kind, int(count or 1)) for kind, _, count in (word.partition("-") for word in options.work)]
    if unknown := {kind for kind, _ in words if kind not in WORK and not hasattr(Ours, kind)}:
        parser.error(f"there is no work called {', '.join(sorted(unknown))}")
    context = max([options.after, *(count for kind, count in words if kind == "prompt")]) + 1024
    most = max([1, *(count * STATES.get(kind, 0) for kind, count in words)])
    timed: Timed = opened(options, context, 1 + most) if options.llama is None else Llama(
        options.llama, options.model, context, most, options.host_experts
    )  # fmt: skip
    failed = False
    for kind, count in words:
        try:
            if kind in WORK:
                WORK[kind](timed, count, options.after)
            else:
                getattr(timed, kind)(count)
        except Exception as error:
            found(f"{kind}-{count}: FAILED", text=f"{error or type(error).__name__}")
            failed = True
    sys.stdout.flush()
    os._exit(failed)  # llama.cpp's destructors have crashed


if __name__ == "__main__":
    main()
