"""Batches decoded with drafts of a chosen acceptance: the governor's draft lengths beside fixed ones, in turns.

Usage: python tools/draft_sweep.py MODEL.gguf --requests 8 --accept 0.8 --draft-tokens 1,2,3
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from tool import run_tool
from trigraph.exporter.package.reader import read_manifest
from trigraph.models.errors import TrigraphError
from trigraph.runtime.bench.completions import greedy_completion
from trigraph.runtime.bench.random_tokens import RandomTokens
from trigraph.runtime.bench.replay import replaying
from trigraph.runtime.bench.report import Run
from trigraph.runtime.bench.request_options import RequestOptions
from trigraph.runtime.bench.request_result import Ratio, ratio
from trigraph.runtime.bench.request_run import load_engine
from trigraph.runtime.bench.run import measure, utc_now
from trigraph.runtime.cli.command import grouped
from trigraph.runtime.cli.measure import (
    BenchModelArguments,
    BenchOutputArguments,
    BenchRequestArguments,
    BenchWorkArguments,
    run_benchmark,
)
from trigraph.runtime.device.choice import open_device
from trigraph.runtime.drafting.acceptance import Acceptance
from trigraph.runtime.drafting.choice import Governor
from trigraph.runtime.engine.engine import Engine
from trigraph.runtime.execution.executor import Executor
from trigraph.runtime.requests.options import Options
from trigraph.runtime.requests.request import Request
from trigraph.runtime.sampling.sampling import Sampler
from trigraph.runtime.scheduler.speculation import decode, decode_round
from trigraph.runtime.state.sequence import Sequence as StateSequence

GOVERNOR = "governor"
_PLAIN = "0"
_ROUNDS = 2  # of each choice in turn: a machine's speed changes within seconds


@dataclass(frozen=True)
class DraftResult:
    """Batches that were decoded with one choice of draft lengths. Its fields are keys of `--json`."""

    drafts: str
    """"governor", or the number of drafts of each request in each round."""
    concurrency: int
    """Requests in a batch."""
    tokens_per_s: float
    """Of all of them, without their prompts, where as many drafts are right as on average: the median of batches."""
    min_tokens_per_s: float
    max_tokens_per_s: float
    drafted: int
    accepted: int
    rows_per_round: float
    """Mean number of tokens that a round verified."""
    beside_plain: Ratio
    """How many times as fast as no drafts."""
    beside_best: Ratio
    """How many times as fast as the best fixed number of drafts."""


@dataclass(frozen=True)
class Decoded:
    """A batch, as far as all its requests were decoding."""

    seconds: float
    tokens: float
    """That rounds with so many drafts bring on average, all together: what luck brought would blur the figures."""
    rows: int
    rounds: int
    drafted: int
    accepted: int


@dataclass(frozen=True, kw_only=True)
class DraftReport(Run):
    """Draft lengths of batches."""

    accept: float
    """Probability with which a draft is right."""
    prompt: int
    tokens: int
    results: Sequence[DraftResult]

    def table(self) -> Table:
        """A line for each number of requests and each choice of draft lengths."""
        title = f"{self.model}: drafts right with probability {self.accept}, completions of {self.tokens} tokens"
        table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False)
        for heading in ("requests", "drafts", "tokens/s", "min", "max", "accepted", "rows", "by plain", "by best"):
            table.add_column(heading, justify="right", no_wrap=True)
        for r in self.results:
            table.add_row(
                str(r.concurrency),
                r.drafts,
                *(f"{rate:.1f}" for rate in (r.tokens_per_s, r.min_tokens_per_s, r.max_tokens_per_s)),
                f"{r.accepted / r.drafted:.0%}" if r.drafted else "",
                f"{r.rows_per_round:.1f}",
                *(f"{by.median:.2f} ({by.least:.2f}-{by.most:.2f})" for by in (r.beside_plain, r.beside_best)),
            )
        table.caption = "\n".join(self.provenance())
        return table


def sweep(engine: Engine, options: RequestOptions, concurrency: int, random: RandomTokens) -> list[DraftResult]:
    """Each choice of draft lengths on the same batches, some rounds of each in turn. The first batches do not count.

    Raises RuntimeError when drafts change a completion.
    """
    choices = [GOVERNOR, *(str(drafts) for drafts in sorted({0, *options.draft_tokens}))]
    taken: dict[str, list[Decoded]] = {choice: [] for choice in choices}
    fixed = Governor()  # learns nothing for the engine's own, whose choices are judged
    for i in range(options.repetitions + 1):
        for _ in range(ceil(options.requests / concurrency)):
            prompts = [random.draw(options.prompt) for _ in range(concurrency)]
            batch = _Batch(engine, prompts, options.tokens)
            plain = batch.decoding(_PLAIN, engine.executor, fixed)
            plain.finish()
            decodings = {}
            for choice in choices:
                executor = replaying(engine.executor, plain.texts(), options.accept or 0.0)
                decodings[choice] = batch.decoding(choice, executor, Governor() if choice == GOVERNOR else fixed)
            _take_turns(list(decodings.values()))
            for choice, decoding in decodings.items():
                if decoding.texts() != plain.texts():
                    raise RuntimeError("speculation changed a completion: this is a defect, please report it")
                if i:
                    taken[choice].append(decoding.decoded(options.accept or 0.0))
            for decoding in (plain, *decodings.values()):
                decoding.close()
            batch.close()
    return results(concurrency, taken)


def _take_turns(decodings: list[_Decoding]) -> None:
    """Some rounds of each, another one first each time, while all their requests decode; then the rest."""
    turn, unfinished = 0, True
    while unfinished:
        going = [decoding.advance(_ROUNDS) for decoding in decodings[turn:] + decodings[:turn]]
        unfinished = all(going)
        turn = (turn + 1) % len(decodings)
    for decoding in decodings:
        decoding.finish()


def results(concurrency: int, taken: dict[str, list[Decoded]]) -> list[DraftResult]:
    """The figures of each choice."""
    rates = {choice: [batch.tokens / batch.seconds for batch in batches] for choice, batches in taken.items()}
    best = max((choice for choice in rates if choice != GOVERNOR), key=lambda choice: statistics.median(rates[choice]))
    return [
        DraftResult(
            drafts=choice,
            concurrency=concurrency,
            tokens_per_s=statistics.median(rates[choice]),
            min_tokens_per_s=min(rates[choice]),
            max_tokens_per_s=max(rates[choice]),
            drafted=sum(batch.drafted for batch in batches),
            accepted=sum(batch.accepted for batch in batches),
            rows_per_round=sum(batch.rows for batch in batches) / sum(batch.rounds for batch in batches),
            beside_plain=ratio(rates[choice], rates[_PLAIN]),
            beside_best=ratio(rates[choice], rates[best]),
        )
        for choice, batches in taken.items()
    ]


class _Batch:
    """Prompts that are computed once, and decoded any number of times."""

    def __init__(self, engine: Engine, prompts: list[list[int]], tokens: int) -> None:
        self._engine, self._prompts, self._tokens = engine, prompts, tokens
        self._sequences: list[StateSequence] = [engine.steps.new_sequence() for _ in prompts]
        rows = engine.steps.prefill(self._sequences, prompts)
        self._first = [int(token) for token in rows.tokens]
        self._acceptance = Acceptance(engine.steps.max_pending - 1)

    def decoding(self, choice: str, executor: Executor, governor: Governor) -> _Decoding:
        """All of them, to be decoded with one choice of draft lengths."""
        asked = Options(draft_tokens=None if choice == GOVERNOR else int(choice), drafter="mtp")
        running = []
        for sequence, prompt, token in zip(self._sequences, self._prompts, self._first, strict=True):
            completion = greedy_completion(self._engine, prompt, self._tokens)
            completion.push(token)
            sampler = Sampler(completion.options.chosen_by, prompt)
            length = self._engine.model.draft_length(asked, self._acceptance)
            running.append(Request(completion, sampler, length, self._engine.steps.fork(sequence), token))
        return _Decoding(executor, running, governor)

    def close(self) -> None:
        """Gives the prompts' state back."""
        for sequence in self._sequences:
            self._engine.steps.release(sequence)


class _Decoding:
    """A batch on its way with one choice of draft lengths; its rounds count while all requests decode."""

    def __init__(self, executor: Executor, running: list[Request], governor: Governor) -> None:
        self._executor, self._running, self._governor = executor, running, governor
        self._seconds = 0.0
        self._counted = 0

    def advance(self, rounds: int) -> bool:
        """Decodes so many rounds, while none of the requests is finished; false once one is."""
        started = time.perf_counter()
        for _ in range(rounds):
            if any(request.finished for request in self._running):
                break
            decode_round(self._executor, self._running, self._governor)
            self._counted += 1
        self._seconds += time.perf_counter() - started
        return not any(request.finished for request in self._running)

    def finish(self) -> None:
        """Decodes what is left."""
        for _ in decode(self._executor, self._running, self._governor):
            pass

    def texts(self) -> list[list[int]]:
        """The tokens of each sequence, and the last one, which its state does not hold."""
        return [[*request.state.tokens, request.token] for request in self._running]

    def decoded(self, accept: float) -> Decoded:
        """What the rounds that count bring with drafts that are right with probability `accept`."""
        rounds = [done for request in self._running for done in request.completion.rounds[: self._counted]]
        return Decoded(
            seconds=self._seconds,
            tokens=sum(accept**i for done in rounds for i in range(1 + done.drafted)),
            rows=sum(1 + done.drafted for done in rounds),
            rounds=self._counted,
            drafted=sum(done.drafted for done in rounds),
            accepted=sum(done.accepted for done in rounds),
        )

    def close(self) -> None:
        """Gives the requests' state back."""
        for request in self._running:
            self._executor.steps.release(request.state)


def bench_drafts(folder: Path, options: RequestOptions) -> DraftReport:
    """Decodes batches with drafts that are right with probability `options.accept`.

    Raises TrigraphError when the package cannot do the run, or has no MTP head.
    """
    manifest = read_manifest(folder)
    context = options.context(manifest)
    device, started = open_device(options.device), utc_now()
    machine, bandwidth = measure(device, options.threads)
    batches = len({0, *options.draft_tokens}) + 3  # the fixed lengths; the prompts, the texts to replay, the governor
    engine = load_engine(folder, options, context, batches * max(options.concurrency))
    if engine.model.no_draft is not None:
        raise TrigraphError(f"--accept needs a model that can draft; {engine.model.no_draft}")
    random = RandomTokens(manifest.config.vocab)
    results = []
    for concurrency in options.concurrency:
        bandwidth.measure()
        results += sweep(engine, options, concurrency, random)
    return DraftReport(
        machine=machine.with_passes(bandwidth.passes),
        model=manifest.config.name,
        layers=manifest.config.trunk_layers,
        started=started,
        repetitions=options.repetitions,
        weights=engine.model.weight_layout,
        accept=options.accept or 0.0,
        prompt=options.prompt,
        tokens=options.tokens,
        results=results,
    )


@grouped
def sweep_drafts(
    measured: BenchModelArguments,
    work: BenchWorkArguments,
    load: BenchRequestArguments,
    output: BenchOutputArguments,
) -> None:
    """Decode batches with drafts that are right with a chosen probability."""
    if load.requests is None or work.accept is None:
        raise TrigraphError("give --requests and --accept")
    run_benchmark(measured, work, load, output, serve=bench_drafts)


if __name__ == "__main__":
    run_tool(sweep_drafts)
