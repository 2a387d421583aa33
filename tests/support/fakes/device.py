"""A device for the fake model: its addresses are keys, and what lies there is read when a step begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.fakes.model import FakeGraph
from trigraph.runtime.device.exchange import NO_DEVICE_INPUTS, Array, DeviceInputs, Exchange
from trigraph.runtime.device.sampler import Sample, SamplingParameters
from trigraph.runtime.execution.device_executor import DeviceExecutor
from trigraph.runtime.execution.executor import SequencePlan, _walk
from trigraph.runtime.execution.results import BlockResult, DraftResult
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.sampling import draws
from trigraph.runtime.sampling.sampling import Sampler, Sampling


class FakeMemory(dict[int, Any]):
    """What lies at the device's addresses."""

    def store(self, value: Any) -> int:
        self[address := len(self) + 1] = value
        return address


class FakeRows:
    """A result on the device."""

    def __init__(self, memory: FakeMemory, rows: Array) -> None:
        self._memory, self._rows = memory, rows

    def row(self, number: int) -> int:
        return self._memory.store(self._rows[number].copy())


class FakeExchange(Exchange):
    """Takes rows from the device's memory; other inputs of such rows are wrong on purpose."""

    def __init__(self, memory: FakeMemory, inputs: Mapping[str, Array], outputs: Mapping[str, Any]) -> None:
        super().__init__(inputs, outputs)
        self._memory = memory

    def send(self, device_inputs: DeviceInputs = NO_DEVICE_INPUTS) -> None:
        for name, addresses in device_inputs.items():
            for row, address in enumerate(addresses):
                if address:
                    self._inputs[name][row] = self._memory[address]

    def result(self, name: str) -> Any:
        return FakeRows(self._memory, self.outputs[name].copy()) if name == "hidden" else self.outputs[name]


def unasked(result: DraftResult, row: int, position: int) -> int:
    raise AssertionError("a draft is chosen from the logits of a head")


class FakeSampler:
    """Draws as the host does, with a top-k of at most `most_top_k`."""

    def __init__(self, memory: FakeMemory, most_top_k: int = 64) -> None:
        self.rounds = 0
        self._memory, self._most_top_k = memory, most_top_k
        self._samples: Sequence[Sample] = ()
        self._tokens: list[int] = []
        self._steps = 0

    def supports(self, parameters: SamplingParameters) -> bool:
        return parameters.temperature == 0 or 0 < parameters.top_k <= self._most_top_k

    def begin(self, samples: Sequence[Sample]) -> None:
        self.rounds += 1
        self._samples, self._tokens, self._steps = samples, [], 0

    def sample(self, exchange: Exchange, rows: int) -> None:
        self._steps += 1
        logits, best = exchange.outputs["logits"], exchange.outputs["tokens"]
        for row in range(rows):
            parameters, position, only_drawn = self._samples[len(self._tokens)]
            token = int(best[row])
            if parameters.temperature:
                drawn = draws.draw(logits[row], None, parameters, position)
                token = drawn if drawn is not None else (-1 if only_drawn else token)
            self._memory[self.place(len(self._tokens))] = token
            self._tokens.append(token)

    def walk(self, exchange: Exchange, walks: Sequence[tuple[int, int]]) -> None:
        self._steps += 1
        block = BlockResult(exchange.outputs["candidates"], exchange.outputs["edges"])
        for row, count in walks:
            way = self._samples[len(self._tokens)]
            sequence: Any = SimpleNamespace(length=way.position - 1)
            guess = Sampler(Sampling(**way.parameters._asdict()), []).guess_among
            for token in _walk(SequencePlan(sequence, [], count, unasked, guess_among=guess), block, row):
                self._memory[self.place(len(self._tokens))] = token
                self._tokens.append(token)

    def place(self, number: int) -> int:
        return -1 - number  # where nothing else lies

    def read(self) -> NDArray[np.int64]:
        return np.array(self._tokens, np.int64)

    def seconds(self) -> list[float]:
        return [1.0] * self._steps


def device_executor(steps: Steps) -> DeviceExecutor:
    """Runs the rounds of a fake model's steps on a fake device."""
    memory = FakeMemory()
    for graph in (steps._verify, steps._draft, steps._block_draft):
        if isinstance(graph, FakeGraph):
            graph.exchange = lambda inputs, outputs: FakeExchange(memory, inputs, outputs)
    return DeviceExecutor(steps, FakeSampler(memory))
