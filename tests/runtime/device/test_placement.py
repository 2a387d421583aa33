"""What a GPU holds within a budget."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from support.packages import Packages
from support.placed import weights_of_package
from trigraph.exporter import read_manifest
from trigraph.exporter.describe.description import model_of
from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.cuda_library import CudaLibrary
from trigraph.runtime.device.cuda_sharing import placed as decide
from trigraph.runtime.device.placement import ExpertLayer, Placement, Weights, nowhere, place, weights_of_file

SMALL = ExpertLayer(name="small", experts=8, expert_bytes=10, chosen=2)
LARGE = replace(SMALL, name="large", expert_bytes=15)
HEAD = replace(SMALL, name="head", head=True)
MODEL = Weights(trunk_bytes=100, layers=(SMALL, LARGE, HEAD))


def placed(left: int, weights: Weights = MODEL) -> Placement:
    """With so many bytes beside trunk, state and what steps work with."""
    return place(weights, 50, weights.trunk_bytes + 50 + 7 + left, working_bytes=7)


@pytest.mark.parametrize(
    ("left", "head", "small", "large"),
    [
        (0, 0, 0, 0),
        (9, 0, 0, 0),
        (79, 7, 0, 0),  # the head's come first
        (80, 8, 0, 0),
        (90, 8, 1, 0),
        (104, 8, 1, 0),
        (105, 8, 1, 1),
        (80 + 3 * 25 + 14, 8, 4, 3),
        (80 + 200 - 1, 8, 8, 7),
        (80 + 200, 8, 8, 8),
        (10**9, 8, 8, 8),
    ],
)
def test_experts_are_even_over_layers(left: int, head: int, small: int, large: int) -> None:
    found = placed(left)
    assert found.slots == {"head": head, "small": small, "large": large}
    assert found.is_split == (min(head, small, large) < 8)
    assert found.device_bytes <= 100 + left
    assert found.device_bytes + found.host_bytes == 100 + 80 + 80 + 120


def test_layers_of_few_experts_leave_room_to_others() -> None:
    few = replace(SMALL, name="few", experts=2)
    assert placed(100, Weights(trunk_bytes=1, layers=(few, SMALL))).slots == {"few": 2, "small": 8}


def test_a_dense_model() -> None:
    dense = Weights(trunk_bytes=100)
    assert not placed(0, dense).is_split
    with pytest.raises(TrigraphError):
        placed(-1, dense)


def test_a_budget_below_the_trunk_is_an_error() -> None:
    for layers, words in (((SMALL,), ", even with all routed experts on the CPU: 10"), ((), ": 10")):
        with pytest.raises(TrigraphError, match=r"may take 11\.00 GB, and the model needs 12\.07 GB there" + words):
            place(Weights(trunk_bytes=10**10, layers=layers), 10**9, 11 * 10**9)


@pytest.mark.parametrize(
    ("trunk", "state", "layers", "words"),
    [
        (5, 8, (), r"; a state of 5\.00 GB fits: load with a smaller context, fewer sequences or less --kv-memory, or"),
        (5, 8, (SMALL,), r"; a state of 5\.00 GB fits: "),
        (
            16,
            2,
            (),
            r"; with this state, a file of 8\.00 GB fits: take one with fewer bits a weight, or use --device cpu",
        ),
        (16, 2, (SMALL,), "; load with a smaller context or fewer sequences, or use --device cpu"),
        (16, 11, (), "; load with a smaller context or fewer sequences, or use --device cpu"),
    ],
)
def test_what_would_fit(trunk: int, state: int, layers: tuple[ExpertLayer, ...], words: str) -> None:
    weights = Weights(trunk_bytes=trunk * 10**9, layers=layers)
    with pytest.raises(TrigraphError, match=words):
        place(weights, state * 10**9, 11 * 10**9, working_bytes=10**9)


@pytest.mark.parametrize("layers", [(), (SMALL,)])
def test_without_a_budget_what_is_free_may_just_do(layers: tuple[ExpertLayer, ...]) -> None:
    weights = Weights(trunk_bytes=10**9, layers=layers)

    def found(free: int) -> Placement:
        library = cast(CudaLibrary, SimpleNamespace(free_memory=lambda: (free, 10**12)))
        return decide(library, weights, 10**8, None, all_on_host=False)

    assert found(10**9).device_bytes == 10**9
    with pytest.raises(TrigraphError, match=r"may take 1\.00 GB, and the model needs 1\.10 GB there"):
        found(10**9 - 10**8 - 1)


def test_what_a_token_reads_from_the_host() -> None:
    assert nowhere(MODEL, 0).host_bytes_per_token == 2 * 10 + 2 * 15
    assert placed(80 + 100).host_bytes_per_token == 2 * 10 / 2 + 2 * 15 / 2
    assert placed(10**9).host_bytes_per_token == 0


def test_the_sentence() -> None:
    large = Weights(trunk_bytes=2 * 10**9, layers=(replace(SMALL, expert_bytes=10**9),))
    words = place(large, 10**9, 8 * 10**9, working_bytes=10**9).sentence()
    assert "holds 6.0 GB of weights, with 4 of 8 routed experts, and 1.0 GB of state" in words
    assert "the other experts, 4.0 GB, of which a token reads 1.00 GB" in words
    assert "holds all 10.0 GB of weights and 1.0 GB of state" in place(large, 10**9, 10**11).sentence()


@pytest.mark.parametrize("geometry", ["tiny-moe", "tiny-next", "tiny-dense", "tiny-streams"])
def test_what_graphs_read_is_known_from_the_file(packages: Packages, geometry: str) -> None:
    """But for tensors that an export converts."""
    package = packages(geometry, "Q4_K_M")
    read, told = weights_of_package(package), weights_of_file(model_of(package, read_manifest(package)))
    assert [replace(layer, name="") for layer in read.layers] == [replace(layer, name="") for layer in told.layers]
    assert read.trunk_bytes == pytest.approx(told.trunk_bytes, rel=0.1)
    assert bool(read.layers) == (geometry != "tiny-dense")
