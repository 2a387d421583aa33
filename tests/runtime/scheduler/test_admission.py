"""How much of the waiting prompts a round computes."""

from types import SimpleNamespace
from typing import Any

import pytest

from trigraph.runtime.execution.prefill_speed import PrefillSpeed
from trigraph.runtime.scheduler.admission import Admission
from trigraph.runtime.scheduler.model import Scheduling


def piece(decoding: int, prompts: int, waiting: int, prefill_ms: float | None = None, room: int = 16) -> int:
    """Tokens of a piece where a token takes a millisecond and a round of those that decode 20, but for two of them."""
    model: Any = SimpleNamespace(
        steps=SimpleNamespace(chunk=512, state=SimpleNamespace(sequences=room)),
        scheduling=Scheduling(prefill_ms=prefill_ms),
        prefill_speed=SimpleNamespace(tokens=lambda seconds: round(seconds * 1000)),
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
