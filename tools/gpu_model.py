"""Times one model on one machine: `python tools/gpu_model.py MODEL WORK ...`, for tools/gpu.py.

Prints each thing that was timed as a line of JSON, as it comes. WORK is any of these, in any order:

    hash            of what fixed tokens compute: the same wherever layers and experts lie
    prompt-N        a prompt of N tokens: the first one, and the best of two more, ms
    decode, verify-N, draft, state     steps after a prompt of --after tokens, ms; state: of a rejection and of a fork
    sequences-N     a decode of N sequences, each after such a prompt, ms
    requests-N      tokens a second of N requests, without drafts and with such that are right at a rate of --accept, as
                    many as are chosen, 1, or 3
    profile         the kernels of captured steps, by torch.profiler: us of a step, and how often
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

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
EXPECTED = re.compile(r"should take ([\d.,]+) ms")
"""What the start says of a token."""


def found(what: str, *figures: float, text: str = "") -> None:
    """Prints a row."""
    print(json.dumps({"what": what, "figures": figures, "text": text}), flush=True)


def median_ms(call: Callable[[], float]) -> float:
    """Of calls that return seconds."""
    started, times = time.monotonic(), list[float]()
    while len(times) < WARM + COUNTED and (len(times) < 4 or time.monotonic() - started < ENOUGH):
        times.append(call())
    return 1e3 * statistics.median(times[min(WARM, len(times) - 3) :])


class Timed:
    """A model that is timed."""

    def __init__(self, engine: Engine, after: int, tokens: int, accept: float) -> None:
        self.engine, self.after, self.tokens, self.accept = engine, after, tokens, accept
        self.steps, self.random = engine.steps, RandomTokens(engine.steps.vocab)
        self.one = Trigraph(engine)
        self.governor, self.prompted = Governor(), False

    def work(self, name: str) -> None:
        """Does what a word says."""
        kind, _, count = name.partition("-")
        getattr(self, f"_{kind}")(*([int(count)] if count else []))

    def _hash(self) -> None:
        tokens = [7919 * (i + 1) * (i + 3) % self.steps.vocab for i in range(305)]
        sequence, digest = self.steps.new_sequence(), hashlib.sha256()
        digest.update(np.asarray(self.steps.prefill([sequence], [tokens[:300]]).logits).tobytes())
        digest.update(np.asarray(self.steps.verify([sequence], [tokens[300:]]).logits).tobytes())
        self.steps.release(sequence)
        found("hash", text=digest.hexdigest()[:16])

    def _prompt(self, count: int) -> None:
        times = []
        for _ in range(3):
            self.one.reset()
            times.append(1e3 * self.one.prefill(self.random.draw(count)))
        self.one.reset()
        self.prompted = False
        found(f"prompt of {count}", times[0], min(times[1:]))

    def _decode(self) -> None:
        self._verify(1)

    def _verify(self, count: int) -> None:
        self._prompt_once()
        step = median_ms(lambda: self.one.verify(self.random.draw(count)))
        found("decode" if count == 1 else f"verify of {count}", step)

    def _draft(self) -> None:
        self._prompt_once()
        if self.one.drafters:
            found("draft", median_ms(lambda: self.one.draft(3)))

    def _state(self) -> None:
        sequence = self._prefilled([1000])[0]

        def rejection() -> float:
            self.steps.verify([sequence], [[1, 2, 3, 4]])
            return seconds(partial(self.steps.keep, sequence, 0))

        found("rejection, fork", *map(median_ms, (rejection, lambda: seconds(partial(self._forked, sequence)))))
        self.steps.release(sequence)

    def _forked(self, sequence: StateSequence) -> None:
        self.steps.release(self.steps.fork(sequence))

    def _sequences(self, count: int) -> None:
        batch = self._prefilled([self.after] * count)

        def step() -> float:
            tokens = [self.random.draw(1) for _ in batch]
            taken = seconds(partial(self.steps.verify, batch, tokens))
            for sequence in batch:
                self.steps.keep(sequence, 1)
            return taken

        found(f"decode of {count} sequences", median_ms(step))
        for sequence in batch:
            self.steps.release(sequence)

    def _requests(self, count: int) -> None:
        prompts = [self.random.draw(512) for _ in range(count)]
        sequences = [self.steps.new_sequence() for _ in prompts]
        firsts = [
            int(self.steps.prefill([sequence], [prompt]).tokens[0])
            for sequence, prompt in zip(sequences, prompts, strict=True)
        ]
        begun = list(zip(prompts, sequences, firsts, strict=True))
        runs = [self._completed(begun, self.engine.executor, partial(no_drafts, "plain")) for _ in range(2)]
        rates, texts = [max(rate for rate, _ in runs)], runs[0][1]
        if self.steps.can_draft:
            known = [[*prompt, *text] for prompt, text in zip(prompts, texts, strict=True)]
            drafts, longest = replaying(self.engine.executor, known, self.accept), self.steps.max_pending - 1
            chosen = partial(DraftLength, Acceptance(longest), longest)
            # The first ones also learn what steps cost, and capture them.
            for length in (chosen, partial(chosen, fixed=1), partial(chosen, fixed=3)):
                speculative = [self._completed(begun, drafts, length) for _ in range(4 if length is chosen else 2)]
                rates.append(max(rate for rate, _ in speculative))
                runs += speculative
        if any(given != texts for _, given in runs):
            raise RuntimeError("a text has changed from one run to the next: this is a defect, please report it")
        found(f"tokens/s of {count} requests: plain, drafts right at {self.accept}, 1 of them, 3", *rates)
        for sequence in sequences:
            self.steps.release(sequence)

    def _completed(
        self, begun: list[tuple[list[int], StateSequence, int]], executor: Executor, length: Callable[[], DraftLength]
    ) -> tuple[float, list[list[int]]]:
        """Tokens a second of completions behind their prompts, and the tokens."""
        requests = []
        for prompt, sequence, first in begun:
            completion = greedy_completion(self.engine, prompt, self.tokens)
            completion.push(first)
            sampler, own = Sampler(completion.options.chosen_by, prompt), self.steps.fork(sequence)
            requests.append(Request(completion, sampler, length(), own, first))
        took = seconds(lambda: [*decode(executor, requests, self.governor)])
        for request in requests:
            self.steps.release(request.state)
        return len(requests) * self.tokens / took, [request.completion.ids for request in requests]

    def _profile(self) -> None:
        from gpu_profile import profiled  # with PyTorch

        self._prompt_once()
        profiled("decode", lambda: self.one.verify(self.random.draw(1)), found)
        profiled("verify of 4", lambda: self.one.verify(self.random.draw(4)), found)

    def _prompt_once(self) -> None:
        if not self.prompted:
            self.one.reset()
            self.one.prefill(self.random.draw(self.after))
            self.prompted = True

    def _prefilled(self, lengths: Sequence[int]) -> list[StateSequence]:
        batch = [self.steps.new_sequence() for _ in lengths]
        for sequence, length in zip(batch, lengths, strict=True):
            self.steps.prefill([sequence], [self.random.draw(length)])
        return batch


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("work", nargs="+")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gpu-memory", type=partial(parse_bytes, "--gpu-memory"))
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--after", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=128, help="Of a completion")
    parser.add_argument("--accept", type=float, default=0.8)
    options = parser.parse_args()
    if unknown := {word.partition("-")[0] for word in options.work} - WORK:
        parser.error(f"there is no work called {', '.join(sorted(unknown))}")
    if "profile" in options.work:
        import torch  # before ONNX Runtime's provider, which then takes the same libraries

        if not torch.cuda.is_available():
            found("SKIPPED", text="this PyTorch sees no GPU")
            return
        torch.zeros(1, device="cuda")
    counts = {kind: [int(word.split("-")[1]) for word in options.work if word.startswith(kind)] for kind in KINDS}
    context = max([options.after, *counts["prompt-"]]) + 1024
    sequences = 1 + max([1, *counts["sequences-"], *counts["requests-"]])
    started = time.monotonic()
    engine = load(
        options.model,
        device=options.device,
        gpu_memory=options.gpu_memory,
        options=ExportOptions(kv_type=options.kv_type),
        sequences=sequences,
        context=context,
    )
    found("seconds of loading", time.monotonic() - started)
    print(*engine.model.notices, sep="\n", file=sys.stderr, flush=True)
    for told in filter(None, map(EXPECTED.search, engine.model.notices)):
        found("a token, as the start expects", float(told[1].replace(",", "")))
    timed = Timed(engine, options.after, options.tokens, options.accept)
    for word in options.work:
        timed.work(word)
    engine.close()


WORK = {"hash", "prompt", "decode", "verify", "draft", "state", "sequences", "requests", "profile"}
KINDS = ("prompt-", "sequences-", "requests-")
"""Words whose number decides how large the state is."""


if __name__ == "__main__":
    main()
