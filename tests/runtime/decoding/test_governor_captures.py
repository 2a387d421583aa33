"""Draft lengths of short completions in a simulation of a GPU, on which each shape of a step is captured."""

import numpy as np
import pytest
from numpy.typing import NDArray

from support.fakes.machine import CAPTURING, Simulation, crowd

REQUESTS, TOKENS, SEEDS = 4, 64, 8


def speeds(accept: float, drafts: int | None) -> NDArray[np.float64]:
    """Of requests that begin together on a server that has just started, and of others when it has served many."""
    found = np.zeros(2)
    for seed in range(SEEDS):
        simulation = Simulation(CAPTURING, drafts, seed)
        first = simulation.speed(crowd(REQUESTS, TOKENS, accept), REQUESTS)
        for concurrency in (1, 2, 3, 4):
            simulation.speed(crowd(2 * concurrency, 256, accept), concurrency)
        found += first, simulation.speed(crowd(4 * REQUESTS, TOKENS, accept), REQUESTS)
    return found / SEEDS


@pytest.mark.parametrize("accept", [0.5, 0.8, 0.95])
def test_short_completions_do_not_pay_for_captures(accept: float) -> None:
    """What is tried in a few rounds is not captured."""
    first, later = speeds(accept, None)
    fixed = np.array([speeds(accept, drafts) for drafts in (0, 1, 3, 5)])
    assert first > 0.95 * fixed[0, 0]
    assert later > 0.97 * fixed[:, 1].max()
