"""A machine with known costs, and requests whose drafts are right at known rates: what a policy of drafting is worth.

Nothing runs: a round only adds what its steps would take, and asks a random number whether a draft is right.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import mul

import numpy as np

from trigraph.runtime.device.cuda.device import _CAPTURED_AT
from trigraph.runtime.drafting.acceptance import Acceptance
from trigraph.runtime.drafting.choice import Governor
from trigraph.runtime.drafting.costs import Costs
from trigraph.runtime.requests.draft_length import DraftLength
from trigraph.runtime.requests.stats import Round

K = 8


def interpolated(table: dict[int, float]) -> Callable[[float], float]:
    """A function through these points, straight between and beyond them."""
    x, y = np.array(list(table)), np.array(list(table.values()))

    def value(rows: float) -> float:
        if rows > x[-1]:
            return float(y[-1] + (rows - x[-1]) * (y[-1] - y[-2]) / (x[-1] - x[-2]))
        return float(np.interp(rows, x, y))

    return value


@dataclass(frozen=True)
class Machine:
    """Milliseconds of runs by rows and sequences, each up to `noise` (a share) longer at random.

    The first run of a shape takes `first` more, the one that is captured `capture`, and those before it `launches`; a
    draft run a fifth of these two.
    """

    verify: Callable[[int, int], float]
    draft: Callable[[int, int], float]
    noise: float = 0.05
    first: float = 0.0
    capture: float = 0.0
    launches: float = 0.0


# As measured, 4 layers: of a mixture of experts, whose rows cost nearly what the first one does, and of a dense model,
# whose rows are nearly free as far as they are read beside the weights, up to 8.
_EXPERTS = interpolated({1: 5.6, 2: 7.1, 4: 10.5, 8: 17.3, 12: 25.0, 16: 31.2, 24: 42.5, 32: 51.5})
_DENSE = interpolated({1: 25.4, 4: 26.5, 5: 27.6, 6: 30.0, 8: 36.5, 9: 51.0, 12: 61.0, 16: 77.0, 24: 107.0, 32: 138.0})
EXPERTS = Machine(lambda rows, n: _EXPERTS(rows) + 0.2 * (n - 1), lambda rows, n: 1.6 + 0.35 * rows + 0.2 * n)
# An H100 with all 40 layers of the mixture of experts (docs/explanation/cuda.md); above 16 rows from the ratios of an
# earlier measurement. Other kernels take over at 9, 17, 33 and 65 rows. A capture takes three runs and, on the fake
# device, 11 to 34 ms of the host; launches need less of the host's time than their kernels of the GPU's.
_GPU = interpolated(
    {1: 3.0, 2: 3.6, 4: 4.7, 8: 5.9, 9: 6.8, 12: 7.9, 16: 9.8, 17: 8.3, 24: 9.7}
    | {32: 12.0, 33: 15.1, 40: 16.8, 64: 17.2, 65: 21.0, 128: 33.6}
)
GPU = Machine(lambda rows, n: _GPU(rows), lambda rows, n: 0.2 + 0.006 * rows + 0.02 * n, first=1.0)
CAPTURING = replace(GPU, capture=25.0, launches=0.3)
DENSE = Machine(lambda rows, n: _DENSE(rows) + 0.4 * (n - 1), lambda rows, n: 9.0 + 0.4 * rows + 0.1 * n)


@dataclass
class Client:
    """A request that is `tokens` long and whose draft number i is right at rate `rates[i]` if those before it are."""

    tokens: int
    rates: list[float]
    length: DraftLength | None = None
    done: int = 0
    behind: int = 0
    rounds: list[Round] = field(default_factory=list)


def crowd(count: int, tokens: int, accept: float) -> list[Client]:
    """Clients that are all alike."""
    return [Client(tokens, [accept] * (K - 1)) for _ in range(count)]


@dataclass
class Simulation:
    """A governor on a machine, with what it has learnt; `fixed` drafts in each round instead of its choice."""

    machine: Machine
    fixed: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self.governor = Governor(Costs())
        self.common = Acceptance(K - 1)
        self.random = np.random.default_rng(self.seed)
        self.seconds = self.tokens = 0.0
        self.runs = Counter[tuple[str, int, int]]()

    def speed(self, clients: list[Client], concurrency: int) -> float:
        """Tokens a second that are to be expected of all clients, in order, at most so many at a time."""
        waiting, running = list(clients), list[Client]()
        before = self.seconds, self.tokens
        while waiting or running:
            while waiting and len(running) < concurrency:
                running.append(self._start(waiting.pop(0)))
            self._round(running)
            running = [client for client in running if client.done < client.tokens]
        return (self.tokens - before[1]) / (self.seconds - before[0])

    def _start(self, client: Client) -> Client:
        client.length = DraftLength(self.common, K - 1)
        return client

    def _round(self, running: list[Client]) -> None:
        rooms = [min(client.tokens - client.done, K) - 1 for client in running]
        if self.fixed is None:
            lengths = [client.length for client in running if client.length]
            candidates = [
                length.candidates([], 0, room, self.governor.cost) for length, room in zip(lengths, rooms, strict=True)
            ]
            asked = self.governor.choose(candidates)
        else:
            asked = [min(self.fixed, room) for room in rooms]
        drafting = 0.0
        for depth in range(max(asked)):
            members = [i for i, length in enumerate(asked) if length > depth]
            behind = sum(running[i].behind for i in members) if depth == 0 else 0
            run = self._seconds("draft", len(members) + behind, len(members))
            if self.fixed is None:
                self.governor.costs.draft.observe(len(members) + behind, len(members), run)
            drafting += run
        rows = len(running) + sum(asked)
        verifying = self._seconds("verify", rows, len(running))
        for client, drafted in zip(running, asked, strict=True):
            accepted = 0
            while accepted < drafted and self.random.random() < client.rates[accepted]:
                accepted += 1
            client.behind = accepted if drafted else client.behind + 1
            client.done += accepted + 1
            self.tokens += 1 + sum(accumulate(client.rates[:drafted], mul))
            client.rounds.append(
                Round([0] * (accepted + 1), drafted, accepted, drafting, drafting + verifying, len(running))
            )
        started = self.seconds
        self.seconds += drafting + verifying
        if self.fixed is None:
            for client, length, offered, drafted in zip(running, lengths, candidates, asked, strict=True):
                length.observe(offered, drafted, client.rounds[-1])
            self.governor.costs.verify.observe(rows, len(running), verifying)
            self.governor.observe(started, self.seconds)

    def _seconds(self, graph: str, rows: int, sequences: int) -> float:
        milliseconds = (self.machine.draft if graph == "draft" else self.machine.verify)(rows, sequences)
        milliseconds *= 1 + self.machine.noise * self.random.random()
        shape = graph, rows, sequences
        self.runs[shape] += 1
        milliseconds += self.machine.first * (self.runs[shape] == 1)
        size = 1 if graph == "verify" else 0.2
        milliseconds += size * self.machine.capture * (self.runs[shape] == _CAPTURED_AT)
        milliseconds += size * self.machine.launches * (self.runs[shape] < _CAPTURED_AT)
        return milliseconds / 1000


def known_governor() -> Governor:
    """One for which all times are known: a row costs a tenth of a step, and a draft step nothing to speak of."""
    costs = Costs()
    for rows in range(39, 0, -1):  # those of a round without drafts come last: they are to be fresh
        for sequences in (1, 2, 4):
            for _ in range(3):
                costs.verify.observe(rows, sequences, 1 + 0.1 * rows)
    for sequences in (1, 2, 3, 4):
        for _ in range(2):
            costs.draft.observe(sequences, sequences, 0.01)
    return Governor(costs)
