"""Costs of runs: timed ones, and guesses between and beyond them."""

from itertools import combinations

import numpy as np
import pytest

from trigraph.runtime.drafting.costs import Costs, RunCost, non_negative


def learn(cost: RunCost, rows: int, sequences: int, *seconds: float) -> None:
    cost.observe(rows, sequences, 9.0)  # the first one of a shape does not count
    for time in seconds:
        cost.observe(rows, sequences, time)


def test_nothing_is_known_before_a_second_run() -> None:
    cost = RunCost()
    assert cost.seconds(1, 7) == []
    cost.observe(1, 1, 2.0)
    assert cost.seconds(1, 7) == []
    assert cost.most_rows == 0
    cost.observe(1, 1, 2.0)
    assert cost.seconds(1, 7)[0] == pytest.approx(2.0)
    assert cost.most_rows == 1


def test_the_least_recent_time_counts() -> None:
    cost = RunCost()
    learn(cost, 1, 1, 3.0, 2.0, 5.0)
    assert cost.seconds(1, 0)[0] == pytest.approx(2.0)
    for _ in range(8):
        cost.observe(1, 1, 4.0)
    assert cost.seconds(1, 0)[0] == pytest.approx(4.0)


def test_timed_shapes_trump_the_fit() -> None:
    cost = RunCost()
    steps = {1: 1.0, 2: 1.1, 4: 1.2, 5: 2.0, 8: 2.1}
    for rows, seconds in steps.items():
        learn(cost, rows, 1, seconds)
    found = cost.seconds(1, 7)
    for rows, seconds in steps.items():
        assert found[rows - 1] == pytest.approx(seconds)
    assert 1.1 < found[2] < 1.2
    assert found == sorted(found)


def test_more_rows_bound_the_time_of_fewer() -> None:
    cost = RunCost()
    learn(cost, 1, 1, 1.0)
    learn(cost, 3, 1, 7.0)  # on a busy machine
    learn(cost, 4, 1, 1.5)
    assert cost.seconds(1, 3)[2] == pytest.approx(1.5)


def test_other_numbers_of_sequences_are_guessed() -> None:
    """From times of 1, 2 and 4 sequences that 8 are expected to continue."""
    cost = RunCost()
    for sequences in (1, 2, 4):
        for rows in (sequences, 2 * sequences, 3 * sequences):
            learn(cost, rows, sequences, 5 + 0.5 * rows + 0.2 * sequences)
    found = cost.seconds(8, 8)
    assert found[0] == pytest.approx(5 + 4 + 1.6, rel=0.1)
    assert found[8] == pytest.approx(5 + 8 + 1.6, rel=0.1)


def test_rows_share_experts() -> None:
    """Beyond the timed rows the cost of one more falls, as it falls in truth."""
    routed, rng = 8 / 256, np.random.default_rng(0)

    def truth(rows: int) -> float:
        return 2 + 0.2 * rows + 60 * (1 - (1 - routed) ** rows)

    with_experts, without = RunCost(routed), RunCost()
    for cost in (with_experts, without):
        for rows in range(1, 13):
            learn(cost, rows, 1, *(truth(rows) * (1 + 0.02 * rng.random(4))))
    guess, straight = with_experts.seconds(1, 39)[39], without.seconds(1, 39)[39]
    assert guess == pytest.approx(truth(40), rel=0.12)
    assert straight > 1.2 * truth(40)


def test_memory_is_bounded() -> None:
    cost = RunCost()
    for rows in range(1, 2000):
        learn(cost, rows, 1, 1.0 + rows)
    assert len(cost._times) <= 256
    assert cost.seconds(1, 3)[3] > 0


def test_pieces_of_prompts() -> None:
    costs = Costs()
    assert costs.prefill_tokens(0.1) == 32
    costs.observe_prefill(100, 0.5)
    assert costs.prefill_tokens(0.1) == 20
    assert costs.prefill_tokens(1e-6) == 1
    for tokens in (16, 64, 256, 512, 40) * 4:
        costs.observe_prefill(tokens, 0.02 + 0.001 * tokens)
    for tokens in (30, 100, 400):
        assert costs.prefill_tokens(0.02 + 0.001 * tokens) == pytest.approx(tokens, rel=0.05)


@pytest.mark.parametrize("seed", range(20))
def test_non_negative_least_squares(seed: int) -> None:
    """Of the best solutions in each choice of terms, the best one that is not negative; columns may be alike."""
    rng = np.random.default_rng(seed)
    terms = rng.random((int(rng.integers(3, 12)), 4)) * [1.0, 40.0, 8.0, 1e-3]
    if seed % 4 == 0:
        terms[:, 2] = terms[:, 1]
    targets = terms @ rng.normal(size=4) + 0.1 * rng.normal(size=len(terms))
    best = float(targets @ targets)
    for size in range(1, 5):
        for chosen in map(list, combinations(range(4), size)):
            found = np.linalg.lstsq(terms[:, chosen], targets, rcond=None)[0]
            if found.min() >= 0:
                best = min(best, float(((terms[:, chosen] @ found - targets) ** 2).sum()))
    found = np.array(non_negative(terms.tolist(), targets.tolist()))
    assert found.min() >= 0
    assert float(((terms @ found - targets) ** 2).sum()) == pytest.approx(best, rel=1e-6, abs=1e-9)
