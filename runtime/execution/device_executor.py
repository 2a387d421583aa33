"""Rounds on a device: drafts that feed each other and the verify, and the sampling of every token.

The host enqueues all of it, waits once, and reads tokens and hidden rows; logits only where somebody asks for them.
"""

from __future__ import annotations

import numpy as np

from trigraph.runtime.device.exchange import NO_DEVICE_INPUTS, DeviceInputs, Memory
from trigraph.runtime.device.sampler import DeviceSampler, Sample, SamplingParameters
from trigraph.runtime.execution.executor import HostExecutor, Plan, SequencePlan
from trigraph.runtime.execution.results import DraftRun, RoundResult
from trigraph.runtime.execution.sessions import Binding
from trigraph.runtime.execution.steps import Run, Steps

_UNREAD = SamplingParameters(0.0, 0, 1.0, 0.0)  # of rows that the host samples


class DeviceExecutor(HostExecutor):
    """Enqueues a round and waits once; where the host must choose a draft, drafts are waited for one by one."""

    def __init__(self, steps: Steps, sampler: DeviceSampler) -> None:
        super().__init__(steps)
        self.sampler = sampler

    def run(self, plan: Plan) -> RoundResult:
        """Makes the drafts, verifies all tokens and draws those that the device can draw."""
        plan = [part._replace(parameters=self._supported(part)) for part in plan]
        if all(part.parameters is not None and not part.floor and not part.block for part in plan if part.drafts):
            return self._enqueued(plan)
        drafts, runs = self.draft(plan)
        known = [part._replace(tokens=[*part.tokens, *own], drafts=0) for part, own in zip(plan, drafts, strict=True)]
        return self._enqueued(known)._replace(runs=runs)

    def to_verify(self, plan: Plan, chain: DraftChain) -> tuple[list[list[int]], DeviceInputs]:
        """The tokens of each sequence, 0 for drafts that only the device knows, and where it finds these."""
        return [[*part.tokens, *[0] * part.drafts] for part in plan], chain.inputs()

    def _supported(self, part: SequencePlan) -> SamplingParameters | None:
        parameters = part.parameters
        return parameters if parameters is not None and self.sampler.supports(parameters) else None

    def _enqueued(self, plan: Plan) -> RoundResult:
        chain = DraftChain(self.steps, self.sampler, plan)
        given, device_inputs = self.to_verify(plan, chain)
        samples = [
            Sample(part.parameters or _UNREAD, part.sequence.length + 1 + i, only_drawn=True)
            for part, tokens in zip(plan, given, strict=True)
            for i in range(len(tokens))
        ]
        self.sampler.begin([*chain.samples(), *samples])
        chain.enqueue()
        drafted: list[int] = []

        def run(binding: Binding) -> list[list[int]]:
            binding.exchange.send(device_inputs)
            binding.enqueue()
            self.sampler.sample(binding.exchange, len(samples))
            read = self.sampler.read()
            binding.exchange.receive()
            drafted.extend(read.tolist())
            return chain.filled(given, drafted) if device_inputs else given

        tokens, rows = self.steps.verify_by([part.sequence for part in plan], given, run)
        asked = [part.parameters is not None for part, own in zip(plan, given, strict=True) for _ in own]
        drawn = [token if wanted else -1 for token, wanted in zip(drafted[-len(samples) :], asked, strict=True)]
        return RoundResult(tokens, rows, chain.runs(), drawn)


class DraftChain:
    """The drafts of a round. They are its first samples, link after link."""

    def __init__(self, steps: Steps, sampler: DeviceSampler, plan: Plan) -> None:
        self._steps, self._sampler, self._plan = steps, sampler, plan
        depth = max((part.drafts for part in plan), default=0)
        self._links = [[i for i, part in enumerate(plan) if part.drafts > link] for link in range(depth)]
        self._rows: list[int] = []  # of each link
        self._hidden: Memory = None  # rows of the last link
        numbers = iter(range(sum(part.drafts for part in plan)))
        self._numbers = [{i: next(numbers) for i in members} for members in self._links]

    def samples(self) -> list[Sample]:
        """The samples that choose the drafts."""
        return [
            Sample(self._plan[i].parameters or _UNREAD, self._plan[i].sequence.length + 1 + link, only_drawn=False)
            for link, members in enumerate(self._links)
            for i in members
        ]

    def enqueue(self) -> None:
        """Enqueues the draft runs."""
        for link, members in enumerate(self._links):
            sequences = [self._plan[i].sequence for i in members]
            if not link:
                self._steps.draft(sequences, [self._plan[i].tokens[0] for i in members], self._run(len(members)))
                continue
            before = self._links[link - 1]
            device_inputs = {
                "input_ids": [self._sampler.place(self._numbers[link - 1][i]) for i in members],
                "prev_hidden": [self._hidden.row(before.index(i)) for i in members],
            }
            unknown = np.zeros((len(members), 1), np.float32)
            self._steps.draft_more(sequences, [0] * len(members), unknown, self._run(len(members), device_inputs))

    def inputs(self) -> DeviceInputs:
        """Where the verify finds the drafts, behind the known tokens of each sequence."""
        if not self._links:
            return NO_DEVICE_INPUTS
        each = zip(self._plan, self._of_each(), strict=True)
        places = [p for part, n in each for p in [*[0] * len(part.tokens), *map(self._sampler.place, n)]]
        return {"input_ids": places}

    def filled(self, tokens: list[list[int]], drafted: list[int]) -> list[list[int]]:
        """The tokens with the drafts at their ends, from the samples by number."""
        return [
            [*own[: len(own) - len(numbers)], *[drafted[number] for number in numbers]]
            for own, numbers in zip(tokens, self._of_each(), strict=True)
        ]

    def runs(self) -> list[DraftRun]:
        """What they took, once the device was waited for."""
        sizes = zip(self._rows, self._links, self._sampler.seconds(), strict=False)
        return [DraftRun(rows, len(members), seconds) for rows, members, seconds in sizes]

    def _of_each(self) -> list[list[int]]:
        return [[numbers[i] for numbers in self._numbers if i in numbers] for i in range(len(self._plan))]

    def _run(self, samples: int, device_inputs: DeviceInputs = NO_DEVICE_INPUTS) -> Run:
        def run(binding: Binding) -> None:
            exchange = binding.exchange
            exchange.send(device_inputs)
            binding.enqueue()
            self._sampler.sample(exchange, samples)
            self._hidden = exchange.result("hidden")
            self._rows.append(len(exchange.sent["input_ids"]))

        return run
