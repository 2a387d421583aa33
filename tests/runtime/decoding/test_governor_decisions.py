"""Decisions of the governor that stand for more rounds than one."""

from support.fake_machine import known_governor
from trigraph.runtime.drafting.draft_length import Offer
from trigraph.runtime.drafting.governor import Governor


def test_a_choice_stands_while_rounds_are_short() -> None:
    """Offers that took as long as a round: the choice holds for the next ones, of as many requests."""
    governor = known_governor()
    offers = [Offer(0, [0.9, 0.1]), Offer(0, [0.02])]
    governor.observe(2, 0.0, 1.0, 1.0)
    assert governor.choose(offers[1:] * 2, offering=1.0) == [0, 0]
    assert not governor.holds(2), "it does not know yet what lies between two rounds: plain ones look too cheap"
    governor.observe(2, 2.0, 3.0, 1.0)
    assert governor.choose(offers, offering=1.0) == [1, 0]
    assert not governor.holds(1)
    assert held(governor, 2) == 16
    assert governor.choose(offers, offering=1.0) == [1, 0]
    assert held(governor, 2) == 32


def held(governor: Governor, requests: int) -> int:
    """For how many rounds nothing is offered."""
    rounds = 0
    while governor.holds(requests):
        rounds += 1
    return rounds


def test_a_decision_stands_until_n_grams_turn_up() -> None:
    """A trial does not end it. New requests are decided on anew."""
    governor = known_governor()
    for started in (0.0, 2.0):
        governor.observe(2, started, started + 1.0, 1.0)
    head, worse, ngrams = Offer(0, [0.9, 0.01]), Offer(0, [0.01, 0.01]), Offer(0, [0.9, 0.9], [5, 6])
    governor._budget = 1e9
    assert governor.choose([head], offering=1.0) == [2], "a trial"
    assert governor.standing == [1]
    governor._budget = -1e9
    assert held(governor, 1) == 16
    assert governor.choose([worse], offering=1.0) == [1], "the next look at them is later"
    assert held(governor, 1) == 32
    assert governor.choose([ngrams], offering=1.0) == [2]
    assert not governor.holds(1)
    assert governor.choose([head], offering=1.0) == [1]
    assert governor.holds(1)
    assert governor.choose([worse], offering=1.0) == [0]
    assert held(governor, 1) == 16


def test_a_choice_stands_for_no_long_rounds() -> None:
    governor = known_governor()
    governor.observe(2, 0.0, 1e9, 1e9)
    governor.choose([Offer(0, [0.9, 0.1])], offering=1.0)
    assert not governor.holds(1)


def test_a_choice_of_n_grams_is_for_one_round() -> None:
    governor = known_governor()
    for started in (0.0, 1.0):
        governor.observe(2, started, started + 1.0, 1.0)
    assert governor.choose([Offer(0, [0.9, 0.8], [7, 8])], offering=1.0) == [2]
    assert not governor.holds(1)
    assert governor.choose([Offer(0, [0.01], [7])], offering=1.0) == [0]
    assert governor.holds(1), "these were not wanted"
