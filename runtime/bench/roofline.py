"""How near a step comes to what the machine can do: its floor is the time to read its bytes, or to multiply."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from trigraph.custom_ops.cost import Cost, Workload
from trigraph.exporter.package.manifest import Manifest
from trigraph.runtime.bench.cost import GraphCost
from trigraph.runtime.bench.experts import ExpertCounter
from trigraph.runtime.bench.machine import Machine
from trigraph.runtime.bench.random_tokens import RandomTokens
from trigraph.runtime.bench.result import Result
from trigraph.runtime.bench.sample import Case, Timing

_DRAWS = 8  # of random tokens, over which distinct experts are averaged


class Roofline:
    """Turns the timings of one package on one machine into results."""

    def __init__(self, folder: Path, manifest: Manifest, machine: Machine) -> None:
        """Raises TrigraphError when a graph holds an operator whose cost is unknown."""
        self._folder, self._manifest, self._machine = folder, manifest, machine
        self._graphs: dict[str, GraphCost] = {
            name: GraphCost(folder / f"{name}.onnx")
            for name in ("prefill", "verify", "draft", "block")
            if name in manifest.graphs
        }
        self._costs: dict[tuple[str, int, int, int], Cost] = {}

    def result(self, timing: Timing) -> Result:
        """Medians over the samples; each sample is divided by the floor at the bandwidth of its own moment."""
        case, seconds = timing.case, [sample.seconds for sample in timing.samples]
        lower, median, upper = _quartiles(seconds)
        reads = [sample.read_gb_s for sample in timing.samples if sample.read_gb_s is not None]
        if case.name == "prefill" and not self._machine.int8_gmac_s:
            reads = []  # products bound it, not reads
        cost = self._cost(case) if reads else None
        floors = [] if cost is None else [self._machine.floor_ms(cost, read) for read in reads]
        fractions = [floor / (1e3 * taken) for floor, taken in zip(floors, seconds, strict=False)]
        return Result(
            engine=case.engine,
            name=case.name,
            k=case.k,
            sequences=case.sequences,
            context=case.context,
            threads=self._machine.threads,
            min_ms=1e3 * min(seconds),
            lower_ms=1e3 * lower,
            median_ms=1e3 * median,
            upper_ms=1e3 * upper,
            max_ms=1e3 * max(seconds),
            tokens_per_s=case.k * case.sequences / median,
            bytes=None if cost is None else cost.bytes,
            floor_ms=statistics.median(floors) if floors else None,
            roofline=statistics.median(fractions) if fractions else None,
            note=timing.note,
        )

    def _cost(self, case: Case) -> Cost:
        key = (case.name, case.k, case.context, case.sequences)  # the same for all engines
        if key not in self._costs:
            self._costs[key] = self._count(case)
        return self._costs[key]

    def _count(self, case: Case) -> Cost:
        tokens, context, config = case.k * case.sequences, case.context, self._manifest.config
        graph = self._graphs.get(case.name, self._graphs["verify"])
        if case.name in ("draft", "block"):  # one token chooses as many experts as the router gives it
            experts: Mapping[str, float] = dict.fromkeys(graph.expert_nodes(), config.experts_used)
        elif case.name == "prefill":
            context += (case.k + 1) // 2  # a token sees those before it: the mean
            experts = dict.fromkeys(graph.expert_nodes(), _distinct(config.experts, config.experts_used, tokens))
        else:
            random = RandomTokens(config.vocab)  # anew: a cost does not depend on the cases before
            experts = self._experts.count([random.draw(tokens) for _ in range(_DRAWS)])
        return graph.of(Workload(tokens, case.sequences, context, experts))

    @cached_property
    def _experts(self) -> ExpertCounter:
        return ExpertCounter(self._folder, self._manifest, self._machine.threads)


def _distinct(experts: int, used: int, tokens: int) -> float:
    """Experts that tokens are expected to choose when each chooses `used` at random."""
    return experts * (1 - (1 - used / experts) ** tokens) if experts else 0


def _quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
