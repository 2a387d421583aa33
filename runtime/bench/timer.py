"""Times single steps. Engines and cases take turns, so that a busy machine slows all of them alike."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import methodcaller

from trigraph.runtime.bench.contender import Contender
from trigraph.runtime.bench.machine import Bandwidth
from trigraph.runtime.bench.options import BenchOptions
from trigraph.runtime.bench.random_tokens import RandomTokens
from trigraph.runtime.bench.sample import Case, Sample, Timing, seconds
from trigraph.runtime.engine.engine import Engine
from trigraph.runtime.state.sequence import Sequence as StateSequence

_REST = 0.05  # seconds before a timed step of engines in turns: a peer's threads spin for some ms after one

_Call = Callable[[Contender], float]


class Timer:
    """Times the steps of a run. The first sample of each case touches memory for the first time, and does not count."""

    def __init__(self, options: BenchOptions, bandwidth: Bandwidth, tokens: RandomTokens) -> None:
        self._options, self._bandwidth, self._tokens = options, bandwidth, tokens
        self.prompt = tokens.draw(options.prompt)

    def prefills(self, contenders: Sequence[Contender]) -> Iterator[Timing]:
        """The prompt, at the start of a sequence."""
        samples: dict[str, list[Sample]] = defaultdict(list)
        for repetition in range(1 + max(2, self._options.repetitions // 4)):
            read = self._bandwidth.measure()
            for contender in _rotated(contenders, repetition):
                contender.reset()
                time.sleep(_REST)
                samples[contender.name].append(Sample(contender.prefill(self.prompt), read))
        for engine, taken in samples.items():
            yield Timing(Case(engine, "prefill", len(self.prompt), 0), taken[1:])

    def steps(self, contenders: Sequence[Contender]) -> Iterator[Timing]:
        """Verifies of each number of tokens, and runs of each drafter, after the prompt."""
        samples: dict[Case, list[Sample]] = defaultdict(list)
        rest = _REST if len(contenders) > 1 else 0

        def time_each(name: str, k: int, engines: Sequence[Contender], wake: _Call, call: _Call) -> None:
            time.sleep(rest)
            read = self._bandwidth.measure()
            for engine in engines:
                time.sleep(rest)
                wake(engine)  # its threads
                samples[Case(engine.name, name, k, len(self.prompt))].append(Sample(call(engine), read))

        for repetition in range(self._options.repetitions + 1):
            engines = _rotated(contenders, repetition)
            for k in self._options.verify_tokens:
                tokens = self._tokens.draw(k)
                one, all_ = methodcaller("verify", tokens[:1]), methodcaller("verify", tokens)
                time_each("decode" if k == 1 else "verify", k, engines, one, all_)
            for name, rows in {name: rows for engine in engines for name, rows in engine.drafters.items()}.items():
                draft = methodcaller(name, 1)  # the first one also fills the head's KV cache after the verifies
                time_each(name, rows, [engine for engine in engines if name in engine.drafters], draft, draft)
        for case, taken in samples.items():
            yield Timing(case, taken[1:])

    def sweeps(self, engine: Engine) -> Iterator[Timing]:
        """Decode steps of our engine for each context length, and for each batch size."""
        steps, options = engine.steps, self._options
        opened: list[StateSequence] = []

        def prefilled(length: int) -> StateSequence:
            opened.append(steps.new_sequence())
            steps.prefill(opened[-1:], [self._tokens.draw(length)])
            return opened[-1]

        batches = [(length, [prefilled(length)]) for length in options.contexts]
        companions = [prefilled(options.prompt) for _ in range(max(options.sequences, default=0))]
        batches += [(options.prompt, companions[:count]) for count in options.sequences]
        samples: list[list[Sample]] = [[] for _ in batches]
        for _ in range(options.repetitions + 1):
            for (_, batch), taken in zip(batches, samples, strict=True):
                read = self._bandwidth.measure()
                self._decode(engine, batch)  # wakes the threads
                taken.append(Sample(self._decode(engine, batch), read))
        for (length, batch), taken in zip(batches, samples, strict=True):
            yield Timing(Case("trigraph", "decode", 1, length, len(batch)), taken[1:])
        for sequence in opened:
            steps.release(sequence)

    def _decode(self, engine: Engine, batch: list[StateSequence]) -> float:
        """Seconds of one decode step."""
        tokens = [self._tokens.draw(1) for _ in batch]
        taken = seconds(partial(engine.steps.verify, batch, tokens))
        for sequence in batch:
            engine.steps.keep(sequence, 1)
        return taken


def _rotated(contenders: Sequence[Contender], repetition: int) -> Sequence[Contender]:
    """Each engine comes first in its turn."""
    first = repetition % max(1, len(contenders))
    return [*contenders[first:], *contenders[:first]]
