"""Costs of runs: timed ones, and guesses between and beyond them."""

from math import sqrt

import numpy as np
import pytest

from trigraph.runtime.drafting.costs import Costs, RunCost


def learn(cost: RunCost, rows: int, sequences: int, *seconds: float) -> None:
    cost.observe(rows, sequences, 9e9)  # the first run of a shape, which allocates
    for time in seconds:
        cost.observe(rows, sequences, time)


def test_nothing_is_known_before_a_second_run() -> None:
    cost = RunCost()
    assert cost.seconds(1, range(1, 9)) == {}
    cost.observe(1, 1, 2.0)
    assert cost.seconds(1, range(1, 9)) == {}
    assert not cost.timed(1, 1)
    cost.observe(1, 1, 2.0)
    assert cost.seconds(1, range(1, 9)) == pytest.approx({1: 2.0, 2: 0.8 * 2 * sqrt(2)}), "no guess for more rows"
    assert cost.timed(1, 1) and not cost.timed(1, 2) and not cost.timed(2, 1)


def test_the_shortest_of_the_last_runs_counts() -> None:
    cost = RunCost()
    learn(cost, 1, 1, 3.0, 2.0, 2.4)
    assert cost.seconds(1, [1]) == {1: 2.0}
    for _ in range(4):
        cost.observe(1, 1, 4.0)
    assert cost.seconds(1, [1]) == {1: 4.0}


def test_a_capture_does_not_count() -> None:
    """A GPU captures a shape at its first run or a later one, which then takes as long as many others."""
    cost = RunCost()
    learn(cost, 8, 4, *[2.0] * 6, 50.0, 1.9)
    assert cost.seconds(4, [8]) == {8: 1.9}
    learn(cost, 2, 1, *[2.0] * 6, 50.0)
    assert cost.seconds(1, [2]) == {2: 2.0}


def test_between_timed_shapes_guesses_lie_below_straight_lines() -> None:
    cost = RunCost()
    steps = {1: 1.0, 2: 1.1, 4: 1.8, 5: 2.0, 8: 2.6}
    for rows, seconds in steps.items():
        learn(cost, rows, 1, seconds)
    found = cost.seconds(1, [*range(1, 9), 16, 17])
    for rows, seconds in steps.items():
        assert found[rows] == seconds
    assert found[3] == pytest.approx(0.8 * 1.45)
    assert found[6] == found[5], "never less than what fewer rows take"
    assert found[7] == found[5]
    assert found[16] == pytest.approx(0.8 * 2.6 * sqrt(2))
    assert 17 not in found


def test_what_was_not_timed_lately_is_guessed() -> None:
    cost = RunCost()
    learn(cost, 2, 1, 3.0)
    learn(cost, 1, 1, 1.0)
    for _ in range(990):
        cost.observe(1, 1, 1.0)
    assert cost.seconds(1, [1, 2]) == {1: 1.0, 2: 3.0}
    for _ in range(20):
        cost.observe(1, 1, 1.0)
    assert cost.seconds(1, [1, 2]) == pytest.approx({1: 1.0, 2: 0.8 * sqrt(2)})
    assert not cost.timed(2, 1)


def test_other_numbers_of_sequences_count_where_nothing_else_is_known() -> None:
    cost = RunCost()
    for rows in range(1, 9):
        learn(cost, rows, 1, 5 + 0.5 * rows)
    learn(cost, 2, 2, 6.1)
    for sequences in (3, 4, 5):
        cost.observe(9, sequences, 1.0)  # not timed yet
    expected = {2: 6.1, **{rows: max(6.1, 0.8 * (5 + 0.5 * rows)) for rows in range(3, 9)}}
    assert cost.seconds(2, range(2, 9)) == pytest.approx(expected)


def test_a_clock_may_not_tell_runs_apart() -> None:
    costs = RunCost()
    for seconds in (0.01, 0.01, 0.0, 0.0, -1e-9, 0.01, 0.01):
        costs.observe(1, 1, seconds)
    assert costs.timed(1, 1)


@pytest.mark.parametrize("noise", [0.1, 0.3, 0.8])
def test_times_stay_true_for_days(noise: float) -> None:
    """A machine that is now slower, now faster, in a server that runs for long."""
    costs, rng = Costs(), np.random.default_rng(1)
    for step, factor in enumerate(rng.lognormal(0, noise, 20000)):
        sequences = int(rng.integers(1, 5))
        costs.verify.observe(sequences * (1 + step % 3), sequences, factor * (1 + step % 3))
        costs.draft.observe(sequences, sequences, 0.1 * factor)
    for sequences in range(1, 5):
        for drafts in range(3):
            assert 0.1 < costs.verify.timed(sequences * (1 + drafts), sequences) / (1 + drafts) < 2
        assert 0.01 < costs.draft.timed(sequences, sequences) < 0.2


def test_memory_is_bounded() -> None:
    cost = RunCost()
    for rows in range(1, 2000):
        learn(cost, rows, 1, 1.0 + rows)
        learn(cost, rows, rows, 1.0 + rows)
    tables = cost._tables.values()
    assert max(len(tables), *(len(table._latest) + len(table.seconds) for table in tables)) <= 128
    assert cost.seconds(1, [4])[4] > 0


def test_draft_runs_are_cheap_before_one_was_timed() -> None:
    costs = Costs()
    learn(costs.verify, 1, 1, 1.1)
    assert costs.draft_seconds(1) == pytest.approx((0.2, 0.02))
    learn(costs.draft, 1, 1, 0.33)
    assert costs.draft_seconds(2) == pytest.approx((0.3, 0.03))
    learn(costs.draft, 2, 2, 0.4)
    assert costs.draft_seconds(2) == pytest.approx((0.26, 0.07))


def test_a_pause_is_no_time_between_rounds() -> None:
    costs = Costs()
    learn(costs.verify, 1, 1, 1.0)
    for gap in (0.1, 0.2, 0.1, 30.0):
        costs.observe_gap(gap)
    assert costs.round_seconds(1, [1]) == {1: 1.1}
