"""What several GPUs hold within their budgets."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.parts.expert_counts import read_counts, write_counts
from trigraph.runtime.device.parts.moving_experts import SharedLayer, _save
from trigraph.runtime.device.parts.placement import Placement, first_slots
from trigraph.runtime.device.parts.placing import place
from trigraph.runtime.device.parts.weights import Block, ExpertLayer, Weights

LAYERS, HEAD = 4, 30
BLOCK = Block(nbytes=10, read_bytes=10, state_bytes=2)
STATE = 3 + LAYERS * 2
DENSE = Weights(trunk_bytes=LAYERS * 10 + HEAD, blocks=(BLOCK,) * LAYERS, state_bytes=STATE)
EXPERTS = tuple(
    ExpertLayer(name=str(number), experts=8, expert_bytes=5, chosen=2, block=number) for number in range(LAYERS)
)
MIXED = replace(DENSE, layers=EXPERTS)
LAST = HEAD + 3
"""What the last GPU needs without a layer."""


def placed(
    rooms: Sequence[int], weights: Weights = DENSE, split: Sequence[float] = (), speeds: Sequence[float] = ()
) -> Placement:
    return place(weights, [room + 7 for room in rooms], working_bytes=7, split=split, speeds=speeds)


@pytest.mark.parametrize(
    ("rooms", "split", "on_host", "layers"),
    [
        ((100, 100), (), 0, (3, 1)),  # a layer is left for the last one
        ((100, 100, 100), (), 0, (2, 1, 1)),
        ((24, 100), (), 0, (2, 2)),
        ((23, 100), (), 0, (1, 3)),
        ((11, 100), (), 0, (0, 4)),
        ((24, LAST + 12), (), 1, (2, 1)),
        ((24, LAST + 11), (), 2, (2, 0)),
        ((0, LAST), (), 4, (0, 0)),
        ((100, 100), (1, 3), 0, (1, 3)),
        ((100, 100), (1, 1), 0, (2, 2)),
        ((100, 100, 100), (1, 1, 2), 0, (1, 1, 2)),
        ((100, LAST + 12), (1, 1), 1, (2, 1)),
    ],
)
def test_layers(rooms: Sequence[int], split: Sequence[float], on_host: int, layers: Sequence[int]) -> None:
    """The first GPU is filled, then the next one; what is left is the CPU's, and before them."""
    found = placed(rooms, split=split)
    assert (found.host_layers, [len(gpu.weights.blocks) for gpu in found.gpus]) == (on_host, list(layers))
    assert found.ends[-1] == LAYERS
    for gpu, room in zip(found.gpus, rooms, strict=True):
        assert gpu.device_bytes + gpu.weights.state_bytes <= room
    assert sum(gpu.device_bytes for gpu in found.gpus) + found.host_bytes == DENSE.nbytes
    assert sum(gpu.weights.state_bytes for gpu in found.gpus) + 2 * on_host == STATE


@pytest.mark.parametrize("rooms", [(100, LAST - 1), (0, LAST - 1)])
def test_what_is_behind_the_layers_must_fit_on_the_last_one(rooms: Sequence[int]) -> None:
    with pytest.raises(TrigraphError, match=r"the last GPU may take .*, even with all layers on the CPU"):
        placed(rooms)


@pytest.mark.parametrize(
    ("rooms", "layers", "slots"),
    [
        ((500, 500), (3, 1), (8, 8)),
        ((104, LAST + 104), (2, 2), (8, 8)),
        ((84, LAST + 84), (2, 2), (6, 6)),  # as many of each layer, on both
        ((24, LAST + 104), (1, 3), (2, 4)),
    ],
)
def test_experts(rooms: Sequence[int], layers: Sequence[int], slots: Sequence[int]) -> None:
    found = placed(rooms, MIXED)
    assert [len(gpu.weights.blocks) for gpu in found.gpus] == list(layers) and not found.host_layers
    assert [min(gpu.slots.values()) for gpu in found.gpus] == list(slots)
    assert sum(gpu.device_bytes for gpu in found.gpus) + found.host_bytes == MIXED.nbytes


def test_a_tied_embedding_is_on_the_first_and_the_last_one() -> None:
    tied = replace(DENSE, shared_bytes=6)
    assert [len(gpu.weights.blocks) for gpu in placed((29, 100), tied).gpus] == [1, 3]  # 30 are two layers and it
    found = placed((30, 100), tied)
    assert [gpu.device_bytes for gpu in found.gpus] == [20 + 6, 20 + HEAD]
    (gpu,) = placed((100,), tied).gpus
    assert gpu.device_bytes == DENSE.nbytes


@pytest.mark.parametrize(
    ("rooms", "speeds", "on_host", "layers"),
    [
        ((100, 100), (1, 1), 0, (3, 1)),  # 36 and 12 + LAST
        ((200, 200, 200), (1, 1, 1), 0, (2, 1, 1)),
        ((100, 100), (1, 2), 0, (1, 3)),  # a layer is left for the slow one
        ((100, 100), (2, 1), 0, (3, 1)),
        ((100, LAST + 24), (1, 2), 0, (2, 2)),
        ((13, 25, 100), (1, 1, 2), 0, (1, 1, 2)),
        ((24, LAST + 12), (1, 1), 1, (2, 1)),
    ],
)
def test_layers_by_speed(rooms: Sequence[int], speeds: Sequence[float], on_host: int, layers: Sequence[int]) -> None:
    """Slow memory gets as little as can be, and equal ones share."""
    found = placed(rooms, speeds=speeds)
    assert (found.host_layers, [len(gpu.weights.blocks) for gpu in found.gpus]) == (on_host, list(layers))


def test_the_sentence() -> None:
    block = Block(nbytes=10**9, read_bytes=10**9, state_bytes=10**8)
    dense = Weights(trunk_bytes=6 * 10**9, blocks=(block,) * 4, state_bytes=5 * 10**8)
    names, work = ("cuda:0", "cuda:1"), 10**9
    found = place(dense, [5 * 10**9, 6 * 10**9], work).sentence(names)
    assert found == (
        "cuda:0 holds layers 1 to 3, 3.0 GB of weights and 0.3 GB of state; cuda:1 holds layer 4, 3.0 GB of weights "
        "and 0.2 GB of state, and the output head; a token reads at most 3.00 GB of cuda:0's, 3.00 GB of cuda:1's "
        "memory"
    )
    found = place(dense, [25 * 10**8, 55 * 10**8], work).sentence(names)
    assert found == (
        "cuda:0 holds layer 2, 1.0 GB of weights and 0.1 GB of state; cuda:1 holds layers 3 to 4, 4.0 GB of weights "
        "and 0.3 GB of state, and the output head; the CPU computes the first 1 of 4 layers, 1.0 GB with 0.1 GB of "
        "state; a token reads 1.00 GB of the host's memory and at most 1.00 GB of cuda:0's, 4.00 GB of cuda:1's"
    )


def test_counts_of_several_gpus_are_kept_in_one_file(tmp_path: Path) -> None:
    path, experts = tmp_path / "counts.json", {"first": 4, "last": 4}
    write_counts(path, {"first": np.arange(4.0), "last": np.ones(4)})
    layer = SharedLayer(0, first_slots(4, 2), 10)
    layer.used[:] = 7
    _save(path, {"last": layer}, experts)
    assert {name: used.tolist() for name, used in read_counts(path, experts).items()} == {
        "first": [0, 1, 2, 3],
        "last": [7] * 4,
    }
