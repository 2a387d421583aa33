"""Which experts take the places of which."""

import numpy as np

from trigraph.runtime.device.parts.moving_experts import SharedLayer
from trigraph.runtime.device.parts.placement import first_slots


def layer_of(*used: float, held: int) -> SharedLayer:
    """The first ones are on the device."""
    layer = SharedLayer(0, first_slots(len(used), held), 1)
    layer.used[:] = used
    return layer


def test_the_most_used_come_for_the_least_used() -> None:
    assert layer_of(9, 0, 50, 3, 70, 20, held=3).swaps() == [(70, 4, 1), (11, 5, 0)]


def test_little_more_use_is_not_enough() -> None:
    assert layer_of(100, 124, held=1).swaps() == []
    assert layer_of(0, 4, held=1).swaps() == []
    assert layer_of(100, 130, held=1).swaps() == [(30, 1, 0)]


def test_nothing_moves_where_one_side_has_all() -> None:
    for held in (0, 3):
        assert layer_of(1, 2, 300, held=held).swaps() == []


def test_slots_are_the_first_ones() -> None:
    assert np.array_equal(first_slots(4, 2), [0, 1, -1, -1])
