"""Draft lengths in a simulation: a machine with known costs, and drafts that are right at known rates."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from support.fakes.machine import (
    DENSE,
    EXPERTS,
    GPU,
    Client,
    K,
    Machine,
    Simulation,
    crowd,
    known_governor,
)
from trigraph.runtime.drafting.acceptance import Acceptance
from trigraph.runtime.drafting.choice import Candidates, DraftCost, Governor
from trigraph.runtime.drafting.costs import Costs
from trigraph.runtime.requests.draft_length import DraftLength

MACHINES = {"experts": EXPERTS, "dense": DENSE, "gpu": GPU}
TOKENS = 256


@cache
def sweep(machine: str, concurrency: int, accept: float) -> list[float]:
    """The speed of each fixed draft length."""
    return [
        Simulation(MACHINES[machine], drafts, seed=5).speed(crowd(4 * concurrency, TOKENS, accept), concurrency)
        for drafts in range(K)
    ]


def speeds(machine: str, concurrency: int, accept: float) -> tuple[float, float]:
    """Its speed in the first turn, in which it has everything to learn, and after some more; means of some seeds."""
    first, later, seeds = 0.0, 0.0, range(max(2, 8 // concurrency))
    for seed in seeds:
        simulation = Simulation(MACHINES[machine], seed=seed)
        first += simulation.speed(crowd(concurrency, TOKENS, accept), concurrency)
        simulation.speed(crowd(3 * concurrency, TOKENS, accept), concurrency)
        later += simulation.speed(crowd(2 * concurrency, TOKENS, accept), concurrency)
    return first / len(seeds), later / len(seeds)


def every_second(*factors: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Half of all combinations, as a chessboard has its white squares: any two values of two factors meet."""
    numbered = itertools.product(*map(enumerate, factors))
    return [tuple(value for _, value in one) for one in numbered if sum(at for at, _ in one) % 2 == 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "concurrency", "accept"), every_second(MACHINES, [1, 2, 4, 8, 16], [0.0, 0.5, 0.8, 0.95])
)
def test_near_the_best_fixed_length(machine: str, concurrency: int, accept: float) -> None:
    fixed = sweep(machine, concurrency, accept)
    first, later = speeds(machine, concurrency, accept)
    assert first > (0.85 if machine == "gpu" else 0.92) * max(fixed), "too much was lost in learning"
    assert min(first, later) > 0.97 * fixed[0], "slower than without drafts"
    assert later > 0.98 * fixed[0]
    assert later > (0.97 if accept else 0.98) * max(fixed)


@pytest.mark.parametrize("concurrency", [1, 16])
def test_lengths_are_seldom_compared(concurrency: int) -> None:
    """A comparison of all lengths takes a hundred times as long as a look at the last choice."""
    simulation, searches = Simulation(GPU, seed=0), Counter[str]()
    best = simulation.governor._best

    def counted(candidates: Sequence[Candidates]) -> list[int]:
        searches["all"] += 1
        return best(candidates)

    simulation.governor._best = counted  # type: ignore[method-assign]
    clients = [simulation._start(client) for client in crowd(concurrency, 10**6, 0.8)]
    for _ in range(100):
        simulation._round(clients)
    learning = searches["all"]
    for _ in range(300):
        simulation._round(clients)
    assert learning <= 50
    assert searches["all"] - learning <= 60


def test_drafts_are_held_against_what_was_timed() -> None:
    """A batch that is new decodes without drafts until that was timed: a guess from others may be far off."""
    governor = Governor(costs := Costs())
    for rows in range(1, 9):
        for _ in range(2):
            costs.verify.observe(rows, 1, 1.0)
    for _ in range(2):
        costs.draft.observe(1, 1, 0.01)
    offers = [Candidates([0.9, 0.8])] * 4
    for _ in range(2):
        assert governor.choose(offers) == [0] * 4
        costs.verify.observe(4, 4, 1.0)
    assert sum(governor.choose(offers)) > 0


def test_two_requests_of_a_dense_model_gain() -> None:
    _, later = speeds("dense", 2, 0.8)
    assert later > 1.15 * sweep("dense", 2, 0.8)[0]


def test_rows_go_where_they_bring_most() -> None:
    """One of four is predictable: it drafts, the others do not."""
    simulation = Simulation(Machine(DENSE.verify, lambda rows, n: 1.0 + 0.1 * rows), seed=3)
    clients = [*crowd(3, 400, 0.05), *crowd(1, 1200, 0.97)]
    simulation.speed(clients, 4)
    drafted = [sum(done.drafted for done in client.rounds[20:]) / len(client.rounds[20:]) for client in clients]
    assert max(drafted[:3]) < 0.4
    assert drafted[3] > 0.9


def test_a_predictable_stretch_is_found_after_a_bad_one() -> None:
    """Parked drafts are tried again, and a head that has become right is used again."""
    deep = Machine(lambda rows, n: 10 * DENSE.verify(rows, n), DENSE.draft)
    simulation = Simulation(deep, seed=1)
    client = Client(2500, [0.0] * (K - 1))
    simulation._start(client)
    while client.done < 300:
        simulation._round([client])
    bad = [done.drafted for done in client.rounds[-100:]]
    client.rates = [0.95] * (K - 1)
    while client.done < 2400:
        simulation._round([client])
    assert sum(length > 0 for length in bad) < 12
    assert sum(done.drafted for done in client.rounds[-100:]) > 150


def test_what_was_learnt_holds_for_other_batches() -> None:
    """Requests that come and go: knowledge of one batch size serves the next."""
    simulation = Simulation(DENSE, seed=2)
    for concurrency in (1, 4, 2):
        simulation.speed(crowd(concurrency, 200, 0.8), concurrency)
    tokens = simulation.speed(crowd(6, 200, 0.8), 3)
    assert tokens > 0.9 * max(sweep("dense", 3, 0.8))
    newcomer = crowd(1, 60, 0.8)
    simulation.speed(newcomer, 1)
    assert newcomer[0].rounds[0].drafted > 0, "a new request does not start from what others showed"


def test_a_busy_spell_does_not_decide() -> None:
    """Every eighth run takes three times as long: the least times count."""
    runs = iter(range(10**9))

    def busy(milliseconds: float) -> float:
        return milliseconds * (3 if next(runs) % 8 == 0 else 1)

    machine = Machine(lambda rows, n: busy(DENSE.verify(rows, n)), lambda rows, n: busy(DENSE.draft(rows, n)))
    simulation = Simulation(machine, seed=4)
    simulation.speed(crowd(1, 400, 0.9), 1)
    client = crowd(1, 300, 0.9)
    simulation.speed(client, 1)
    assert sum(done.drafted for done in client[0].rounds) / len(client[0].rounds) > 1.7


@pytest.mark.parametrize("seed", [1, 3])
def test_a_machine_whose_speed_changes(seed: int) -> None:
    """Other programs come and go: what was timed at another speed is not held against what is timed now."""

    def speed(drafts: int | None) -> float:
        pace = np.random.default_rng(100 + seed).choice([1.0, 1.6, 2.6], 100000)
        simulation = Simulation(EXPERTS, drafts, seed=seed)

        def slowed(cost: Callable[[int, int], float]) -> Callable[[int, int], float]:
            return lambda rows, sequences: float(pace[int(2 * simulation.seconds)]) * cost(rows, sequences)

        simulation.machine = Machine(slowed(EXPERTS.verify), slowed(EXPERTS.draft))
        simulation.speed(crowd(4, TOKENS, 0.8), 4)
        return simulation.speed(crowd(16, TOKENS, 0.8), 4)

    assert speed(None) > 0.97 * speed(0)


@pytest.mark.parametrize("concurrency", [1, 2, 4])
@pytest.mark.parametrize("machine", ["experts", "dense"])
def test_a_slow_start_is_not_remembered(machine: str, concurrency: int) -> None:
    """Memory is touched for the first time: the first rounds of a program take nearly twice as long."""
    later = []
    for seed in range(4):
        simulation, true = Simulation(MACHINES[machine], seed=seed), MACHINES[machine]

        def slow(cost: Callable[[int, int], float], simulation: Simulation = simulation) -> Callable[[int, int], float]:
            return lambda rows, sequences: (1.8 if sum(simulation.runs.values()) < 16 else 1) * cost(rows, sequences)

        simulation.machine = Machine(slow(true.verify), slow(true.draft))
        simulation.speed(crowd(concurrency, TOKENS, 0.8), concurrency)
        later.append(simulation.speed(crowd(3 * concurrency, TOKENS, 0.8), concurrency))
    assert np.mean(later) > 0.95 * max(sweep(machine, concurrency, 0.8))


def test_drafts_at_any_price_stay_and_others_come_on_top() -> None:
    governor = known_governor()
    fixed, forced = Candidates([0.1, 0.01, 0.001], least=3), Candidates([1.0, 1.0], [5, 6], 2)
    good, bad = Candidates([0.9, 0.8, 0.7, 0.1]), Candidates([0.02] * 4)
    assert governor.choose([fixed, forced, good, bad]) == [3, 2, 3, 0]


def test_n_grams_need_no_draft_step() -> None:
    governor = known_governor()
    for sequences in (1, 2, 3, 4) * 60:
        governor.costs.draft.observe(sequences, sequences, 5.0)
    chances = [0.8, 0.6, 0.5]
    assert governor.choose([Candidates(chances, [1, 2, 3])]) == [3]
    assert governor.choose([Candidates(chances)]) == [0]


def test_the_second_of_two_steps_of_the_cost_is_worth_reaching() -> None:
    """Up to 4 rows more cost a lot, the next 4 nothing: the best is not at the first dip."""
    governor = Governor(costs := Costs())
    for rows in range(8, 0, -1):
        for _ in range(2):
            costs.verify.observe(rows, 1, 1.0 if rows == 1 else 1.9)
    for _ in range(2):
        costs.draft.observe(1, 1, 0.01)
    assert governor.choose([Candidates([0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5])]) == [7]


def test_a_draft_step_that_few_share_is_not_worth_it() -> None:
    """Of two requests, both draft once; only one is likely to be right with a second draft."""
    governor = known_governor()
    for sequences in (1, 2, 3, 4) * 80:
        governor.costs.draft.observe(sequences, sequences, 0.25)
    both = [Candidates([0.9, 0.4]), Candidates([0.9, 0.01])]
    assert governor.choose(both) == [1, 1]


def test_nothing_is_decided_for_those_who_have_decided() -> None:
    fixed = DraftLength(Acceptance(7), 7, fixed=3)
    offered = [fixed.candidates([], 0, room, DraftCost()) for room in (0, 2, 7)]
    assert Governor().choose(offered) == [0, 2, 3]


def test_a_choice_is_kept_for_ever_more_rounds() -> None:
    """For 1, 2, 4 and then 8; not for other numbers of requests, and not where n-grams turn up."""
    governor = known_governor()
    head, worse = Candidates([0.9, 0.01]), Candidates([0.01, 0.01])
    for kept in (1, 2, 4, 8, 8):
        assert governor.choose([head]) == [1]
        for _ in range(kept):
            assert governor.choose([worse]) == [1]
    assert governor.choose([head]) == [1]
    assert governor.choose([Candidates([0.9, 0.9], [5, 6])]) == [2]
    governor = known_governor()
    assert governor.choose([head]) == [1]
    assert governor.choose([worse, head]) == [0, 1]


def test_a_size_that_was_not_timed_is_tried_until_it_is() -> None:
    governor = Governor(costs := Costs())
    for _ in range(2):
        costs.verify.observe(1, 1, 1.0)
        costs.draft.observe(1, 1, 0.01)
    likely = [Candidates([0.9, 0.1])]
    assert governor.choose(likely) == [1]
    costs.verify.observe(2, 1, 9.0)  # the first run, which is not timed
    assert governor.choose(likely) == [1]
    costs.verify.observe(2, 1, 2.5)
    assert governor.choose(likely) == [0]


@pytest.mark.parametrize(("behind", "drafts"), [(20, 1), (2000, 0)])
def test_a_draft_that_comes_after_much_else_must_pay_for_it(behind: int, drafts: int) -> None:
    """The head first sees all tokens since its last draft."""
    governor = known_governor()
    for rows in (11, 21) * 2:
        governor.costs.draft.observe(rows, 1, 0.01 * rows)
    assert governor.choose([Candidates([0.5], behind=behind)]) == [drafts]


def test_a_pause_changes_no_choice() -> None:
    """Rows cost nothing beside the time of a pause, which is no part of a round."""
    governor = known_governor()
    for started in (0.0, 1.1, 2.2, 60.0):
        governor.observe(started, started + 1.1)
    assert governor.choose([Candidates([0.5, 0.05])]) == [1]
