"""Costs of runs: timed ones, and guesses between and beyond them."""

import pytest

from trigraph.runtime.drafting.costs import Costs, RunCost, lowest


def learn(cost: RunCost, rows: int, sequences: int, *seconds: float) -> None:
    cost.observe(rows, sequences, 9.0)  # the first one of a shape does not count
    for time in seconds:
        cost.observe(rows, sequences, time)


def test_nothing_is_known_before_a_second_run() -> None:
    cost = RunCost()
    assert cost.seconds(1, 7) == []
    cost.observe(1, 1, 2.0)
    assert cost.seconds(1, 7) == []
    assert cost.most_rows(1) == 0
    cost.observe(1, 1, 2.0)
    assert cost.seconds(1, 7)[0] == pytest.approx(2.0)
    assert cost.most_rows(1) == 1
    assert cost.most_rows(2) == 0


def test_a_shorter_time_counts_at_once_and_longer_ones_in_the_end() -> None:
    cost = RunCost()
    learn(cost, 1, 1, 3.0, 2.0, 2.4)
    assert cost.seconds(1, 0)[0] == pytest.approx(2.04)
    for _ in range(60):
        cost.observe(1, 1, 4.0)
    assert cost.seconds(1, 0)[0] == pytest.approx(4.0, rel=0.01)
    assert lowest(0.0, 3.0) == 3.0


def test_between_timed_shapes_lie_straight_lines() -> None:
    cost = RunCost()
    steps = {1: 1.0, 2: 1.1, 4: 1.2, 5: 2.0, 8: 2.6}
    for rows, seconds in steps.items():
        learn(cost, rows, 1, seconds)
    found = cost.seconds(1, 9)
    for rows, seconds in steps.items():
        assert found[rows - 1] == pytest.approx(seconds)
    assert found[2] == pytest.approx(1.15)
    assert found[6] == pytest.approx(2.4)
    assert found[9] == pytest.approx(2.6 + 2 * 1.6 / 7), "behind the last one, the mean slope or more"
    assert found == sorted(found)


def test_more_rows_bound_the_time_of_fewer() -> None:
    cost = RunCost()
    learn(cost, 1, 1, 1.0)
    learn(cost, 3, 1, 7.0)  # on a busy machine
    learn(cost, 4, 1, 1.5)
    assert cost.seconds(1, 3)[2] == pytest.approx(1.5)


def test_other_numbers_of_sequences_count_where_nothing_else_is_known() -> None:
    cost = RunCost()
    for rows in range(1, 9):
        learn(cost, rows, 1, 5 + 0.5 * rows)
    learn(cost, 2, 2, 6.1)
    for sequences in (3, 4, 5):
        cost.observe(9, sequences, 1.0)  # not timed yet
    assert cost.seconds(2, 6) == pytest.approx([6.1, *[5 + 0.5 * rows for rows in range(3, 9)]])
    assert cost.timed(2, 2) and not cost.timed(3, 2)


def test_one_time_alone_is_no_flat_line() -> None:
    cost = RunCost()
    learn(cost, 4, 4, 2.0)
    found = cost.seconds(4, 4)
    assert found[0] == 2.0
    assert 2.2 < found[1] < found[4] < 4.0


def test_memory_is_bounded() -> None:
    cost = RunCost()
    for rows in range(1, 2000):
        learn(cost, rows, 1, 1.0 + rows)
        learn(cost, rows, rows, 1.0 + rows)
    assert max(len(cost._tables), *map(len, cost._tables.values())) <= 64
    assert cost.seconds(1, 3)[3] > 0


def test_draft_runs_are_cheap_before_one_was_timed() -> None:
    costs = Costs()
    assert costs.draft_seconds(2) == [0.0, 0.0, 0.0]
    learn(costs.verify, 1, 1, 1.0)
    assert costs.draft_seconds(2) == [0.0, 0.1, 0.1]
    learn(costs.draft, 1, 1, 0.3)
    learn(costs.draft, 2, 2, 0.4)
    assert costs.draft_seconds(2) == pytest.approx([0.0, 0.3, 0.4])


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
