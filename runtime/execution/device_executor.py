"""Rounds on a device: drafts that feed each other and the verify, and the sampling of every token.

The host enqueues all of it, waits once, and reads tokens and hidden rows; logits only where somebody asks for them.
"""

from __future__ import annotations

import numpy as np

from trigraph.runtime.device.exchange import NO_DEVICE_INPUTS, DeviceInputs, Exchange, Memory
from trigraph.runtime.device.sampler import DeviceSampler, Sample, SamplingParameters
from trigraph.runtime.execution.executor import Executor, Plan, SequencePlan
from trigraph.runtime.execution.results import DraftRun, RoundResult
from trigraph.runtime.execution.sessions import Binding
from trigraph.runtime.execution.steps import Run, Steps

_UNREAD = SamplingParameters(0.0, 0, 1.0, 0.0)  # of rows that the host samples


class DeviceExecutor(Executor):
    """Enqueues a round and waits once; where the host must choose a draft, drafts are waited for one by one.

    Tokens and rows are the host's.
    """

    def __init__(self, steps: Steps, sampler: DeviceSampler) -> None:
        super().__init__(steps)
        self.sampler = sampler

    def run(self, plan: Plan) -> RoundResult:
        """Makes the drafts, verifies all tokens and draws those that the device can draw."""
        plan = [part._replace(parameters=self._supported(part)) for part in plan]
        if all(part.parameters is not None and not part.floor for part in plan if part.drafts):
            return self._enqueued(plan)
        drafts, runs = self.draft(plan)
        known = [part._replace(tokens=[*part.tokens, *own], drafts=0) for part, own in zip(plan, drafts, strict=True)]
        return self._enqueued(known)._replace(runs=runs)

    def to_verify(self, plan: Plan, drafts: DeviceDrafts) -> tuple[list[list[int]], DeviceInputs]:
        """The tokens of each sequence, 0 for drafts that only the device knows, and where it finds these."""
        return [[*part.tokens, *[0] * part.drafts] for part in plan], drafts.inputs()

    def _supported(self, part: SequencePlan) -> SamplingParameters | None:
        parameters = part.parameters
        return parameters if parameters is not None and self.sampler.supports(parameters) else None

    def _enqueued(self, plan: Plan) -> RoundResult:
        drafts = DeviceDrafts(self.steps, self.sampler, plan)
        given, device_inputs = self.to_verify(plan, drafts)
        samples = [
            Sample(part.parameters or _UNREAD, part.sequence.length + 1 + i, only_drawn=True)
            for part, tokens in zip(plan, given, strict=True)
            for i in range(len(tokens))
        ]
        self.sampler.begin([*drafts.samples(), *samples])
        drafts.enqueue()
        drafted: list[int] = []

        def run(binding: Binding) -> list[list[int]]:
            binding.exchange.send(device_inputs)
            binding.enqueue()
            self.sampler.sample(binding.exchange, len(samples))
            read = self.sampler.read()
            binding.exchange.receive()
            drafted.extend(read.tolist())
            return drafts.filled(given, drafted) if device_inputs else given

        tokens, rows = self.steps.verify_by([part.sequence for part in plan], given, run)
        asked = [part.parameters is not None for part, own in zip(plan, given, strict=True) for _ in own]
        drawn = [token if wanted else -1 for token, wanted in zip(drafted[-len(samples) :], asked, strict=True)]
        return RoundResult(tokens, rows, drafts.runs(), drawn)


class DeviceDrafts:
    """The drafts of a round: chains of the MTP head, link after link, then the block drafter's. They are the round's
    first samples."""

    def __init__(self, steps: Steps, sampler: DeviceSampler, plan: Plan) -> None:
        self._steps, self._sampler, self._plan = steps, sampler, plan
        chains = {i: part.drafts for i, part in enumerate(plan) if not part.block}
        links = range(max(chains.values(), default=0))
        self._links = [[i for i, drafts in chains.items() if drafts > link] for link in links]
        self._blocks = [i for i, part in enumerate(plan) if part.block and part.drafts]
        self._rows: list[int] = []  # of each run
        self._hidden: Memory = None  # rows of the last link
        self._numbers: list[list[int]] = [[] for _ in plan]  # of each one's samples
        self._members = [i for link in self._links for i in link]  # of each sample
        self._members += [i for i in self._blocks for _ in range(plan[i].drafts)]
        for number, i in enumerate(self._members):
            self._numbers[i].append(number)

    def samples(self) -> list[Sample]:
        """The samples that choose the drafts."""
        depth = [0] * len(self._plan)
        samples = []
        for i in self._members:
            part = self._plan[i]
            position = part.sequence.length + 1 + depth[i]
            samples.append(Sample(part.parameters or _UNREAD, position, only_drawn=False))
            depth[i] += 1
        return samples

    def enqueue(self) -> None:
        """Enqueues the draft runs."""
        for link, members in enumerate(self._links):
            sequences = [self._plan[i].sequence for i in members]
            if not link:
                self._steps.draft(sequences, self._known(members), self._run(len(members)))
                continue
            before = self._links[link - 1]
            device_inputs = {
                "input_ids": [self._sampler.place(self._numbers[i][link - 1]) for i in members],
                "prev_hidden": [self._hidden.row(before.index(i)) for i in members],
            }
            unknown = np.zeros((len(members), 1), np.float32)
            self._steps.draft_more(sequences, [0] * len(members), unknown, self._run(len(members), device_inputs))
        if self._blocks:
            sequences = [self._plan[i].sequence for i in self._blocks]
            self._steps.draft_block(sequences, self._known(self._blocks), self._walk)

    def inputs(self) -> DeviceInputs:
        """Where the verify finds the drafts, behind the known tokens of each sequence."""
        if not self._members:
            return NO_DEVICE_INPUTS
        each = zip(self._plan, self._numbers, strict=True)
        places = [p for part, n in each for p in [*[0] * len(part.tokens), *map(self._sampler.place, n)]]
        return {"input_ids": places}

    def filled(self, tokens: list[list[int]], drafted: list[int]) -> list[list[int]]:
        """The tokens with the drafts at their ends, from the samples by number."""
        return [
            [*own[: len(own) - len(numbers)], *[drafted[number] for number in numbers]]
            for own, numbers in zip(tokens, self._numbers, strict=True)
        ]

    def runs(self) -> list[DraftRun]:
        """What they took, once the device was waited for."""
        runs = [*self._links, *([self._blocks] if self._blocks else [])]
        sizes = zip(self._rows, runs, self._sampler.seconds(), strict=False)
        return [
            DraftRun(rows, len(members), seconds, block=members is self._blocks) for rows, members, seconds in sizes
        ]

    def _known(self, members: list[int]) -> list[int]:
        return [self._plan[i].tokens[0] for i in members]

    def _run(self, samples: int, device_inputs: DeviceInputs = NO_DEVICE_INPUTS) -> Run:
        def run(binding: Binding) -> None:
            exchange = self._enqueued(binding, device_inputs)
            self._sampler.sample(exchange, samples)
            self._hidden = exchange.result("hidden")

        return run

    def _walk(self, binding: Binding) -> None:
        assert self._steps.block is not None
        first_rows = self._steps.block.first_drafts(len(self._blocks))
        walks = [(row, self._plan[i].drafts) for row, i in zip(first_rows, self._blocks, strict=True)]
        self._sampler.walk(self._enqueued(binding), walks)

    def _enqueued(self, binding: Binding, device_inputs: DeviceInputs = NO_DEVICE_INPUTS) -> Exchange:
        """What a run takes and makes that the device has now."""
        exchange = binding.exchange
        exchange.send(device_inputs)
        binding.enqueue()
        self._rows.append(len(exchange.sent["input_ids"]))
        return exchange
