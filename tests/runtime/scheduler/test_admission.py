"""How much of the waiting prompts a round computes."""

from types import SimpleNamespace
from typing import Any

import pytest

from trigraph.runtime.execution.prefill_speed import PrefillSpeed
from trigraph.runtime.scheduler.admission import Admission
from trigraph.runtime.scheduler.model import Scheduling


def piece(
    decoding: int, prompts: int, waiting: int, prefill_ms: float | None = None, room: int = 16, speed: object = None
) -> int:
    """Tokens of a piece where a round of those that decode takes 20 milliseconds, but for two of them.

    `speed`: that of prompts, in place of a millisecond a token.
    """
    model: Any = SimpleNamespace(
        steps=SimpleNamespace(chunk=512, state=SimpleNamespace(sequences=room)),
        scheduling=Scheduling(prefill_ms=prefill_ms),
        prefill_speed=speed or SimpleNamespace(tokens=lambda seconds: round(seconds * 1000)),
    )
    queue: Any = [None] * waiting
    unused: Any = None
    rounds = [SimpleNamespace(seconds=seconds) for seconds in (0.1, 0.02, 0.02, 0.02, 0.001)]
    active: Any = [SimpleNamespace(decodes=True, completion=SimpleNamespace(rounds=rounds)) for _ in range(decoding)]
    active += [SimpleNamespace(decodes=False) for _ in range(prompts)]
    return Admission(model, queue, unused, unused).piece(active)


@pytest.mark.parametrize(
    ("decoding", "prompts", "waiting", "expected"),
    [
        (0, 1, 0, 512),  # nobody waits for it
        (8, 1, 0, 15),  # the time between tokens nearly doubles
        (5, 1, 0, 15),
        (4, 1, 0, 150),
        (8, 1, 1, 150),
        (8, 0, 2, 150),
        (1, 0, 0, 15),
    ],
)
def test_a_piece_is_longer_while_few_decode(decoding: int, prompts: int, waiting: int, expected: int) -> None:
    assert piece(decoding, prompts, waiting) == expected


def test_requests_that_find_no_place_do_not_lengthen_a_piece() -> None:
    assert piece(8, 0, waiting=5, room=8) == 15


def test_a_limit_that_was_set_holds() -> None:
    assert piece(1, 3, 0, prefill_ms=40) == 40
    assert piece(8, 1, 0, prefill_ms=40) == 40
    assert piece(0, 1, 0, prefill_ms=40) == 512


def test_pieces_of_prompts_come_to_take_the_time_that_is_asked_for() -> None:
    speed = PrefillSpeed()
    assert speed.tokens(0.1) == 32
    speed.observe(100, 0.5)
    assert speed.tokens(0.1) == 20
    assert speed.tokens(1e-6) == 1
    for _ in range(60):
        tokens = speed.tokens(0.12)
        speed.observe(tokens, 0.02 + 0.001 * tokens)
    assert speed.tokens(0.12) == pytest.approx(100, rel=0.1)


@pytest.mark.parametrize(
    ("least", "each", "tokens"),
    [
        (0.018, 0.0001, 70),  # a round reads all weights, and a piece nearly as much: then 25 ms
        (0.014, 0.0005, 22),
        (0.0, 0.001, 15),  # three quarters of a round, as ever
        (0.002, 0.001, 13),
        (0.0, 0.0025, 8),  # as many as decode
    ],
)
def test_a_long_prompt_comes_on_where_short_pieces_cost_as_much(least: float, each: float, tokens: int) -> None:
    """Not by a token a round. Now and then something else holds a piece up."""
    speed = PrefillSpeed()
    for number in range(400):
        size = piece(8, 1, 0, speed=speed) if number > 3 else 512
        speed.observe(size, (least + each * size) * (8 if number % 50 == 20 else 1))
    assert piece(8, 1, 0, speed=speed) == pytest.approx(tokens, rel=0.1)


def test_pieces_become_shorter_as_a_text_grows() -> None:
    """Whatever longer ones took at its beginning."""
    speed, sizes = PrefillSpeed(), list[int]()
    for number in range(300):
        sizes.append(piece(1, 1, 0, speed=speed) if number > 3 else 512)
        speed.observe(sizes[-1], (0.0002 + 0.00001 * number) * sizes[-1])
        if number > 10:
            assert sizes[-1] * (0.0002 + 0.00001 * number) <= 1.4 * 0.15
    assert sizes[-1] < 60
