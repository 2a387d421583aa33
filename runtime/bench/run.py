"""Times the steps of a package: medians over repetitions in which the engines take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import methodcaller
from pathlib import Path

import numpy as np

from trigraph.custom_ops.cost import Cost, Workload
from trigraph.exporter.package.manifest import Manifest
from trigraph.exporter.package.reader import read_manifest
from trigraph.models.errors import TrigraphError
from trigraph.runtime.bench.bandwidth import Bandwidth, memory_bandwidth
from trigraph.runtime.bench.contender import Contender, Trigraph
from trigraph.runtime.bench.cost import GraphCost
from trigraph.runtime.bench.experts import ExpertCounter
from trigraph.runtime.bench.llama_cpp import LlamaCpp
from trigraph.runtime.bench.machine import Machine, gpu_machine, measure_machine
from trigraph.runtime.bench.replay import ReplayDrafter
from trigraph.runtime.bench.report import Report, Result
from trigraph.runtime.decoding.draft_length import DraftLength, FixedLength
from trigraph.runtime.decoding.governor import Costs, Governor
from trigraph.runtime.decoding.request import Request
from trigraph.runtime.decoding.sampling import Sampler, Sampling
from trigraph.runtime.decoding.speculation import Drafter, MTPDrafter, decode
from trigraph.runtime.device.choice import open_device
from trigraph.runtime.engine import Engine
from trigraph.runtime.loading import load
from trigraph.runtime.state.sequence import Sequence as Text

_DRAWS = 8  # random token draws over which distinct experts are averaged
_REST = 0.02  # seconds before a timed step of engines in turns: OpenMP's threads spin for some ms after one

_Call = Callable[[Contender], object]


@dataclass(frozen=True)
class BenchOptions:
    """What to time. `accept` replaces the model's drafts by ones that are right with that probability."""

    prompt: int = 512
    tokens: int = 128
    depths: tuple[int, ...] = (1, 2, 4, 8)
    threads: int = 1
    repetitions: int = 10
    accept: float | None = None
    versus_llama_cpp: bool = False
    contexts: tuple[int, ...] = ()
    """Lengths of the text before a decode step, for a sweep."""
    sequences: tuple[int, ...] = ()
    """Texts that decode in one step, for a sweep after `prompt` tokens each."""
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, value in (("prompt", self.prompt), ("threads", self.threads), ("repetitions", self.repetitions)):
            if value < 1:
                raise TrigraphError(f"{name} is {value}; it must be 1 or more")
        if self.accept is not None and not 0 <= self.accept <= 1:
            raise TrigraphError(f"accept is {self.accept}; it must be from 0 to 1")


def bench(folder: Path, options: BenchOptions) -> Report:
    """Times a package and, if asked for, llama.cpp on the same file.

    Raises TrigraphError when a number of tokens is out of the package's range, or the peer is not installed.
    """
    manifest = read_manifest(folder)
    if not all(1 <= k <= manifest.max_pending for k in options.depths):
        raise TrigraphError(f"k is {options.depths}; a verify takes 1 to {manifest.max_pending} tokens")
    device = open_device(options.device)
    rate = device.copy_rate()  # once: nothing else runs there
    if rate is not None:
        machine, bandwidth = gpu_machine(), Bandwidth(lambda: rate / 1e9)
    else:
        machine, bandwidth = measure_machine(options.threads), memory_bandwidth(options.threads)
    steps = sum(k + 1 for k in options.depths) + manifest.max_pending
    context = options.prompt + max((options.repetitions + 1) * steps, options.tokens + manifest.max_pending)
    sweep = 2 * (options.repetitions + 1) * max(1, len(options.sequences))  # steps of a text
    context = max(context, *(length + sweep for length in (options.prompt, *options.contexts)))
    if context > manifest.max_context:
        raise TrigraphError(f"the run needs a context of {context}; the package holds {manifest.max_context}")
    sequences = 2 + len(options.contexts) + max((0, *options.sequences))
    engine = load(
        folder,
        threads=options.threads,
        context=context,
        sequences=sequences,
        chunk=max(options.prompt, 1),
        device=device.name,
    )
    contenders: list[Contender] = [Trigraph(engine)]
    if options.versus_llama_cpp:
        file = next(iter(manifest.weight_paths(folder).values()))
        contenders.append(LlamaCpp(file, options.threads, context, options.prompt))
    timer = _Timer(folder, manifest, machine, bandwidth, options)
    results = [*timer.prefills(contenders), *timer.steps(contenders), *timer.sweeps(engine)]
    if options.tokens:
        results += timer.generations(engine)
    return Report(machine.with_passes(bandwidth.passes), manifest.config.name, results)


class _Timer:
    def __init__(
        self, folder: Path, manifest: Manifest, machine: Machine, bandwidth: Bandwidth, options: BenchOptions
    ) -> None:
        self._folder, self._manifest, self._options = folder, manifest, options
        self._machine, self._bandwidth = machine, bandwidth
        self._random = np.random.default_rng(0)
        self._experts = ExpertCounter(folder, manifest, options.threads)
        self._prompt = self._draw(options.prompt)

    def prefills(self, contenders: Sequence[Contender]) -> Iterator[Result]:
        """A prompt at the start of a text."""
        times: dict[str, list[float]] = {c.name: [] for c in contenders}
        for turn in range(1 + max(2, self._options.repetitions // 4)):
            for contender in contenders:
                contender.reset()
                time.sleep(_REST)
                seconds = _seconds(lambda c=contender: c.prefill(self._prompt))  # type: ignore[misc]
                if turn:  # the first one touches the weights and allocates
                    times[contender.name].append(seconds)
        for name, seconds_ in times.items():
            yield self._result(name, "prefill", len(self._prompt), 0, seconds_)

    def steps(self, contenders: Sequence[Contender]) -> Iterator[Result]:
        """Verifies of each depth, and draft steps, after the prompt."""
        timings: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
        drafting = [contender for contender in contenders if contender.has_mtp]
        rest = _REST if len(contenders) > 1 else 0

        def take_turns(name: str, k: int, engines: Sequence[Contender], wake: _Call, call: _Call) -> None:
            time.sleep(rest)
            read = self._bandwidth.measure()
            for engine in engines:
                time.sleep(rest)
                wake(engine)  # its threads
                timings.setdefault((engine.name, name, k), []).append((_seconds(partial(call, engine)), read))

        for _ in range(self._options.repetitions + 1):
            for k in self._options.depths:
                tokens = self._draw(k)
                one, whole = methodcaller("verify", tokens[:1]), methodcaller("verify", tokens)
                take_turns("decode" if k == 1 else "verify", k, contenders, one, whole)
            draft = methodcaller("draft", 1)  # the first one makes up for the entries of the verifies before
            take_turns("draft", 1, drafting, draft, draft)
        for (engine, name, k), taken in timings.items():
            yield self._result(engine, name, k, len(self._prompt), *zip(*taken[1:], strict=True))

    def sweeps(self, engine: Engine) -> Iterator[Result]:
        """Decode steps of our engine after texts of each length, and of each number of texts, all of them in turns."""
        steps, options = engine.steps, self._options
        opened: list[Text] = []

        def new_text(length: int) -> Text:
            opened.append(steps.new_sequence())
            steps.prefill(opened[-1:], [self._draw(length)])
            return opened[-1]

        points = [(length, [new_text(length)]) for length in options.contexts]
        companions = [new_text(options.prompt) for _ in range(max(options.sequences, default=0))]
        points += [(options.prompt, companions[:count]) for count in options.sequences]
        timings: list[list[tuple[float, float]]] = [[] for _ in points]
        for _ in range(options.repetitions + 1):
            for (_, texts), taken in zip(points, timings, strict=True):
                read = self._bandwidth.measure()
                for _ in range(2):  # the first step wakes the threads
                    tokens = [self._draw(1) for _ in texts]
                    seconds = _seconds(lambda texts=texts, tokens=tokens: steps.verify(texts, tokens))  # type: ignore[misc]
                    for text in texts:
                        steps.accept(text, 1)
                taken.append((seconds, read))
        for (length, texts), taken in zip(points, timings, strict=True):
            yield self._result("trigraph", "decode", 1, length, *zip(*taken[1:], strict=True), sequences=len(texts))
        for text in opened:
            steps.release(text)

    def generations(self, engine: Engine) -> Iterator[Result]:
        """Greedy texts: plain, and speculative with the governor's choice of depth, in turns."""
        plain: list[float] = []
        speculative: list[float] = []
        note = ""
        for _ in range(max(1, self._options.repetitions // 4)):
            seconds, text, _ = self._generate(engine, MTPDrafter(engine.steps), FixedLength(0, "plain"))
            plain.append(seconds)
            if not engine.steps.can_draft:
                continue
            drafter: Drafter = MTPDrafter(engine.steps)
            if self._options.accept is not None:
                drafter = ReplayDrafter(engine.steps, [*self._prompt, *text], self._options.accept)
            governor = Governor(Costs(), self._manifest.max_pending - 1)
            seconds, again, accepted = self._generate(engine, drafter, governor)
            if again != text:
                raise RuntimeError("speculation changed the text: this is a defect, please report it")
            speculative.append(seconds)
            note = f"{accepted}, speculation {governor.report()}"
        tokens, context = self._options.tokens, len(self._prompt)
        yield self._result("trigraph", "generate", tokens, context, plain, note="plain")
        if speculative:
            yield self._result("trigraph", "generate", tokens, context, speculative, note=note)

    def _generate(self, engine: Engine, drafter: Drafter, draft_length: DraftLength) -> tuple[float, list[int], str]:
        """Seconds without the prompt, the tokens, and what was accepted."""
        steps = engine.steps
        sequence = steps.new_sequence()
        sampler = Sampler(Sampling(temperature=0), self._prompt)
        completion = _Completion(self._options.tokens)
        token = sampler.pick(steps.prefill([sequence], [self._prompt]), 0, len(self._prompt))
        completion.push(token)
        request = Request(sequence, token, sampler, completion, draft_length)
        started = time.perf_counter()
        for _ in decode(steps, [request], drafter):
            pass
        seconds = time.perf_counter() - started
        steps.release(sequence)
        accepted, drafted = sum(r.accepted for r in request.rounds), sum(r.drafted for r in request.rounds)
        return seconds, completion.tokens, f"accepted {accepted}/{drafted}"

    def _draw(self, count: int) -> list[int]:
        vocab = self._manifest.config.vocab
        return [int(token) for token in self._random.integers(0, vocab, count)]

    @cache  # noqa: B019 - one timer lives as long as a run
    def _cost(self, name: str, k: int, context: int, sequences: int) -> Cost:
        graph = GraphCost(self._folder / ("draft.onnx" if name == "draft" else "verify.onnx"))
        if name == "draft":  # one token chooses as many experts as the router gives it
            experts: Mapping[str, float] = dict.fromkeys(graph.expert_nodes(), self._manifest.config.experts_used)
        else:
            experts = self._experts.count([self._draw(k * sequences) for _ in range(_DRAWS)])
        return graph.of(Workload(k * sequences, sequences, context, experts))

    def _result(
        self,
        engine: str,
        name: str,
        k: int,
        context: int,
        seconds: Sequence[float],
        reads: Sequence[float] = (),
        *,
        sequences: int = 1,
        note: str = "",
    ) -> Result:
        """`reads`: GB/s in the turn of each of the `seconds`, for steps that have a roofline."""
        median = statistics.median(seconds)
        cost = self._cost(name, k, context, sequences) if reads else None
        floors = [] if cost is None else [self._machine.floor_ms(cost, read) for read in reads]
        fractions = [floor / (1e3 * taken) for floor, taken in zip(floors, seconds, strict=False)]
        return Result(
            engine=engine,
            name=name,
            k=k,
            sequences=sequences,
            context=context,
            threads=self._options.threads,
            median_ms=1e3 * median,
            min_ms=1e3 * min(seconds),
            max_ms=1e3 * max(seconds),
            tokens_per_s=k * sequences / median,
            bytes=None if cost is None else cost.bytes,
            floor_ms=statistics.median(floors) if floors else None,
            roofline=statistics.median(fractions) if fractions else None,
            note=note,
        )


class _Completion:
    """A completion of a fixed length; see Completion."""

    def __init__(self, limit: int) -> None:
        self.tokens: list[int] = []
        self._limit = limit

    @property
    def left(self) -> int:
        """See Completion."""
        return self._limit - len(self.tokens)

    @property
    def finished(self) -> bool:
        """See Completion."""
        return not self.left

    def push(self, token: int) -> bool:
        """See Completion."""
        self.tokens.append(token)
        return self.finished


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
