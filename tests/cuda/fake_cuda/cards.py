"""`--device cuda` on a machine with three cards: as few as hold the model, the fastest memory first."""

from pathlib import Path

import pytest

from support.devices.fake_cuda import FakeDevice
from support.devices.placed import budget_for_layers, host_layers, parts_of
from support.models.packages import Packages
from support.requests.step_rows import rows_of_steps
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, load

CAPACITY, SEQUENCES = 128, 3
FILE = 4 << 20
"""More than a file's description takes, which counts as weights while cards are chosen."""


@pytest.fixture
def package(packages: Packages) -> Path:
    return packages("tiny-dense", "Q4_K_M")


def engine_of(package: Path, device: str, budget: int | None = None, experts: str = "gpu") -> Engine:
    return load(package, device=device, gpu_memory=budget, experts=experts, context=CAPACITY, sequences=SEQUENCES)


def told(engine: Engine) -> str:
    return "; ".join(notice for notice in engine.model.notices if " holds " in notice)


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_one_that_holds_the_model_is_enough(package: Path, gpu: FakeDevice, device: str) -> None:
    """The fastest one; the others stay untouched."""
    with gpu.clocks(1_000_000, 3_000_000, 2_000_000):
        before = [gpu.allocated(number) for number in range(3)]
        engine = engine_of(package, device)
    assert engine.model.device.label == "cuda:1" and len(parts_of(engine)) == 1 and not told(engine)
    assert [gpu.allocated(number) > before[number] for number in range(3)] == [False, True, False]


def test_others_are_added_where_it_does_not_fit(package: Path, gpu: FakeDevice) -> None:
    """Bits stay; what lies where is said."""
    expected = rows_of_steps(engine_of(package, "cpu"))
    whole = budget_for_layers(package, 0, CAPACITY, SEQUENCES)
    for more, labels in ((FILE, ["cuda:1"]), (-1, ["cuda:1", "cuda:2"])):
        with gpu.clocks(1_000_000, 3_000_000, 2_000_000):
            engine = engine_of(package, "cuda", whole + more)
        assert engine.model.device.label == labels[-1] and len(parts_of(engine)) == len(labels)
        assert [f"{label} holds" in told(engine) for label in labels] == [len(labels) > 1] * len(labels)
        assert not host_layers(engine)
        assert rows_of_steps(engine) == expected


def test_all_are_taken_before_the_cpu(package: Path, gpu: FakeDevice) -> None:
    """Where three do not hold it, it computes the first layers; not where the cards are named."""
    head = budget_for_layers(package, 4, CAPACITY, SEQUENCES)
    engine = engine_of(package, "cuda", head)
    *layers, (last, _) = parts_of(engine)
    assert len(layers) >= 2 and last == 0 and host_layers(engine)
    assert all(f"cuda:{number} holds" in told(engine) for number in range(3))
    assert [layers for layers, _ in parts_of(engine_of(package, "cuda:2", head))] == [4, 0]


def test_experts_left_to_the_cpu_need_no_other_card(packages: Packages, gpu: FakeDevice) -> None:
    package = packages("tiny-moe", "Q4_K_M")
    budget = budget_for_layers(package, 0, CAPACITY, SEQUENCES) + 200_000
    assert engine_of(package, "cuda", budget, experts="cpu").model.device.label == "cuda:0"
    assert not host_layers(found := engine_of(package, "cuda", budget)) and len(parts_of(found)) > 1


def test_budgets_by_card_need_names(package: Path, gpu: FakeDevice) -> None:
    with pytest.raises(TrigraphError, match=r"gpu_memory is .*, and the device cuda; give one number for each GPU"):
        load(package, device="cuda", gpu_memory=[1 << 33] * 2)
