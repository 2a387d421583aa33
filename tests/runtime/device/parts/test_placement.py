"""What a GPU holds within a budget."""

import mmap
from dataclasses import replace

import pytest

from support.devices.placed import state_of_package, weights_of_package
from support.models.packages import Packages
from trigraph.exporter import read_manifest
from trigraph.exporter.describe.description import model_of
from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.cuda.weight_source import whole_pages
from trigraph.runtime.device.parts.placement import Placement
from trigraph.runtime.device.parts.placing import nowhere, place
from trigraph.runtime.device.parts.weights import Block, ExpertLayer, Weights, weights_of_file

SMALL = ExpertLayer(name="small", experts=8, expert_bytes=10, chosen=2)
LARGE = replace(SMALL, name="large", expert_bytes=15)
HEAD = replace(SMALL, name="head", head=True)
MODEL = Weights(trunk_bytes=100, layers=(SMALL, LARGE, HEAD))


def placed(left: int, weights: Weights = MODEL) -> Placement:
    """With so many bytes beside trunk, state and what steps work with."""
    return place(replace(weights, state_bytes=50), [weights.trunk_bytes + 50 + 7 + left], working_bytes=7)


def slots(placement: Placement) -> dict[str, int]:
    """By layer, how many of its experts GPUs hold."""
    return {name: count for gpu in placement.gpus for name, count in gpu.slots.items()}


def is_split(placement: Placement) -> bool:
    """Whether some experts of GPUs' layers are the host's."""
    return any(gpu.is_split for gpu in placement.gpus)


def device_bytes(placement: Placement) -> int:
    """Weights on GPUs."""
    return sum(gpu.device_bytes for gpu in placement.gpus)


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
    assert slots(found) == {"head": head, "small": small, "large": large}
    assert is_split(found) == (min(head, small, large) < 8)
    assert device_bytes(found) <= 100 + left
    assert device_bytes(found) + found.host_bytes == 100 + 80 + 80 + 120


def test_layers_of_few_experts_leave_room_to_others() -> None:
    few = replace(SMALL, name="few", experts=2)
    assert slots(placed(100, Weights(trunk_bytes=1, layers=(few, SMALL)))) == {"few": 2, "small": 8}


def test_a_dense_model() -> None:
    dense = Weights(trunk_bytes=100)
    assert not is_split(placed(0, dense))
    with pytest.raises(TrigraphError):
        placed(-1, dense)


@pytest.mark.parametrize(
    ("blocks", "words"),
    [((), ""), ((Block(nbytes=0, read_bytes=0, state_bytes=0),), ", even with all layers on the CPU")],
)
def test_a_budget_below_what_is_behind_the_layers_is_an_error(blocks: tuple[Block, ...], words: str) -> None:
    for layers in ((replace(SMALL, block=1),), ()):
        with pytest.raises(TrigraphError, match=rf"may take 11\.00 GB, and the model needs 12\.07 GB there{words}: 10"):
            place(Weights(trunk_bytes=10**10, layers=layers, blocks=blocks, state_bytes=10**9), [11 * 10**9])


@pytest.mark.parametrize(
    ("trunk", "state", "layers", "words"),
    [
        (5, 8, (), r"; a state of 5\.00 GB fits: load with a smaller context, fewer sequences or less kv_memory, or"),
        (5, 8, (SMALL,), r"; a state of 5\.00 GB fits: "),
        (16, 2, (), "; take a file with fewer bits a weight, or use device=cpu"),
        (16, 11, (SMALL,), "; take a file with fewer bits a weight, or use device=cpu"),
    ],
)
def test_what_would_fit(trunk: int, state: int, layers: tuple[ExpertLayer, ...], words: str) -> None:
    weights = Weights(trunk_bytes=trunk * 10**9, layers=layers, state_bytes=state * 10**9)
    with pytest.raises(TrigraphError, match=words):
        place(weights, [11 * 10**9], working_bytes=10**9)


@pytest.mark.parametrize("layers", [(), (SMALL,)])
def test_without_a_budget_what_is_free_may_just_do(layers: tuple[ExpertLayer, ...]) -> None:
    weights = Weights(trunk_bytes=10**9, layers=layers, state_bytes=10**8)

    def found(free: int) -> Placement:
        return place(weights, [free], given=False)

    assert device_bytes(found(11 * 10**8)) == 10**9
    with pytest.raises(TrigraphError, match=r"may take 1\.10 GB, and the model needs 2\.17 GB there"):
        found(11 * 10**8 - 1)


BLOCKS = (
    Block(nbytes=35, read_bytes=15, state_bytes=8),  # with an embedding of 20
    Block(nbytes=10, read_bytes=10, state_bytes=2),
    Block(nbytes=15, read_bytes=15, state_bytes=8),
)
LAYERED = Weights(
    trunk_bytes=100,
    layers=(replace(SMALL, block=0), replace(LARGE, block=2), replace(HEAD, block=3)),
    blocks=BLOCKS,
)


@pytest.mark.parametrize(
    ("left", "on_host", "held"),
    [
        (0, 0, {"small": 0, "large": 0, "head": 0}),
        (-1, 1, {"large": 0, "head": 4}),  # there are 42 bytes left, of which an expert of the head takes 10
        (-43, 1, {"large": 0, "head": 0}),
        (-44, 2, {"large": 0, "head": 1}),
        (-55, 2, {"large": 0, "head": 0}),
        (-56, 3, {"head": 2}),
        (-78, 3, {"head": 0}),
    ],
)
def test_the_first_layers_go_to_the_cpu(left: int, on_host: int, held: dict[str, int]) -> None:
    """As few as will do; then experts of the others."""
    found = placed(left, LAYERED)
    (gpu,) = found.gpus
    assert (found.host_layers, gpu.slots) == (on_host, held)
    assert gpu.weights.state_bytes == 50 - sum(block.state_bytes for block in BLOCKS[:on_host])
    assert gpu.device_bytes + gpu.weights.state_bytes <= 150 + left
    assert gpu.device_bytes + found.host_bytes == 100 + 80 + 120 + 80
    with pytest.raises(TrigraphError, match="even with all layers on the CPU"):
        placed(-79, LAYERED)


def test_layers_of_a_dense_model() -> None:
    found = placed(-1, Weights(trunk_bytes=100, blocks=BLOCKS))
    assert (found.host_layers, is_split(found)) == (1, False)
    assert (device_bytes(found), found.host_bytes, found.host_bytes_per_token) == (65, 35, 15)
    assert [gpu.device_bytes_per_token for gpu in found.gpus] == [65]


def test_what_a_token_reads_of_layers() -> None:
    found = placed(-1, LAYERED)
    assert found.host_bytes_per_token == 15 + 2 * 10 + 2 * 15
    assert [gpu.device_bytes_per_token for gpu in found.gpus] == [65]


def test_without_a_budget_all_of_the_trunk_may_just_do() -> None:
    """Without room to spare; with less, layers go to the CPU so that there is some."""

    def found(free: int) -> Placement:
        block = Block(nbytes=10**9, read_bytes=10**9)
        weights = Weights(trunk_bytes=5 * 10**9, blocks=(block,) * 3)
        return place(weights, [free], given=False)

    assert found(7 * 10**9).host_layers == found(5 * 10**9).host_layers == 0
    assert found(5 * 10**9 - 1).host_layers == 2


def test_what_a_token_reads_from_the_host() -> None:
    assert nowhere(MODEL).host_bytes_per_token == 2 * 10 + 2 * 15
    assert placed(80 + 100).host_bytes_per_token == 2 * 10 / 2 + 2 * 15 / 2
    assert placed(10**9).host_bytes_per_token == 0


def test_the_sentence() -> None:
    large = Weights(trunk_bytes=2 * 10**9, layers=(replace(SMALL, expert_bytes=10**9),), state_bytes=10**9)
    words = place(large, [83 * 10**8], working_bytes=10**9).sentence()
    assert "holds 6.0 GB of weights, with 4 of 8 routed experts, and 1.0 GB of state" in words
    assert "the other experts, 4.0 GB; a token reads 1.00 GB of the host's memory and at most 3.00 GB of" in words
    words = place(large, [10**11]).sentence()
    assert "holds all 10.0 GB of weights, of which a token reads at most 4.00 GB, and 1.0 GB of state" in words


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (
            (),
            "the GPU holds 2.0 GB of weights and 1.0 GB of state; the CPU computes the first 1 of 2 layers, 2.0 GB "
            "with 0.5 GB of state; a token reads 1.50 GB of the host's memory and at most 2.00 GB of the GPU's",
        ),
        (
            (replace(SMALL, expert_bytes=10**9, block=1),),
            "the GPU holds 2.0 GB of weights, with 0 of 8 routed experts, and 1.0 GB of state; the CPU computes the "
            "first 1 of 2 layers and the other experts, 10.0 GB with 0.5 GB of state; a token reads 3.50 GB of the "
            "host's memory and at most 2.00 GB of the GPU's",
        ),
    ],
)
def test_the_sentence_of_layers(layers: tuple[ExpertLayer, ...], words: str) -> None:
    first = Block(nbytes=2 * 10**9, read_bytes=1_500_000_000, state_bytes=500_000_000)
    blocks = (first, replace(first, state_bytes=0))
    weights = Weights(trunk_bytes=4 * 10**9, layers=layers, blocks=blocks, state_bytes=1_500_000_000)
    assert place(weights, [4 * 10**9], working_bytes=10**9).sentence() == words


@pytest.mark.parametrize("geometry", ["tiny-moe", "tiny-next", "tiny-dense", "tiny-streams"])
def test_what_graphs_read_is_known_from_the_file(packages: Packages, geometry: str) -> None:
    """But for tensors that an export converts."""
    package = packages(geometry, "Q4_K_M")
    state = state_of_package(package, 64, 1)
    read, told = weights_of_package(package, state), weights_of_file(model_of(package, read_manifest(package)), state)
    assert [replace(layer, name="") for layer in read.layers] == [replace(layer, name="") for layer in told.layers]
    assert read.trunk_bytes == pytest.approx(told.trunk_bytes, rel=0.1)
    assert bool(read.layers) == (geometry != "tiny-dense")
    assert len(read.blocks) == len(told.blocks) == 4
    assert (read.shared_bytes > 0) == (told.shared_bytes > 0) and read.shared_bytes == told.shared_bytes
    for found, expected in zip(read.blocks, told.blocks, strict=True):
        assert found.state_bytes == expected.state_bytes > 0
        assert found.nbytes == pytest.approx(expected.nbytes, rel=0.1)
        assert found.read_bytes == pytest.approx(expected.read_bytes, rel=0.1) and found.read_bytes > 0


@pytest.mark.parametrize(
    ("room", "experts", "piece", "left"),
    [
        (1.5, True, None, 0),
        (2.5, True, 2048, 0.25),
        (5.5, True, 2048, 0.25),
        (6.5, True, 4096, 0.75),  # a GPU of 12 GB has 8 for experts of the 35B-A3B
        (31.4, True, None, 0),  # all fit
        (31.6, True, 2048, 0.25),
        (32.1, True, 4096, 0.75),
        (0.2, False, None, 0),
        (0.5, False, 2048, 0.5),
        (1, False, 4096, 1),
    ],
)
def test_pieces_of_prompts_are_longer_where_there_is_room(
    room: float, experts: bool, piece: int | None, left: float
) -> None:
    """GiB for experts, and what is left for such pieces: at most an eighth, unless experts may not have it."""
    layer = ExpertLayer(name="layer", experts=1000, expert_bytes=32 << 20, chosen=2)
    weights, gib = Weights(trunk_bytes=100, layers=(layer,)), 1 << 30
    found = place(weights, [100 + int(room * gib)], working_bytes=0, experts=experts).gpus[0]
    assert found.piece == piece
    held = int((room - left) * gib) // layer.expert_bytes if experts else 0
    assert found.slots == {"layer": min(held, layer.experts)}


def test_pages_that_hold_something_are_registered_as_stretches() -> None:
    page = mmap.PAGESIZE
    assert whole_pages([(3 * page, 10), (page + 5, page), (9 * page, 2 * page), (3 * page + 20, 5)]) == [
        (page, 3 * page),
        (9 * page, 2 * page),
    ]
