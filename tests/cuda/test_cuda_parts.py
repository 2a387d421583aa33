"""A model over several GPUs, each an emulated one: cut after every layer, it has the bits of the whole one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.devices.placed import budget_for_layers, host_layers, parts_of
from support.models.packages import Packages
from support.models.seeing import SeeingPackages, prompt_of
from support.requests.moved import asked, moved_between
from support.requests.promise import sequence_bits
from support.requests.step_rows import rows_of_steps
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.cache.session_file import SessionFile
from trigraph.runtime.device.cuda.weight_source import CudaWeightSource
from trigraph.runtime.doctor import examine
from trigraph.runtime.doctor.bits import package_bits
from trigraph.runtime.execution.prefill_speed import PrefillSpeed

CONTEXT = 128
LAYERS = 4
CUTS = ((1, 3), (2, 2), (3, 1), (1, 2, 1))


@pytest.fixture(autouse=True)
def emulated(emulator: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--device cuda:0` is the emulator."""
    monkeypatch.setenv("TRIGRAPH_LIBRARY_DIR", str(emulator))
    monkeypatch.setenv("TRIGRAPH_ISA", "portable")


def engine_of(package: Path, split: Sequence[int] = (), **settings: Any) -> Engine:
    """With so many layers on one GPU after the other; without, on the CPU."""
    if not split:
        return load(package, device="cpu", context=CONTEXT, sequences=3)
    device = ",".join(["cuda:0"] * len(split))
    engine = load(package, device=device, split=split, context=CONTEXT, sequences=3, **settings)
    assert [layers for layers, _ in parts_of(engine)] == list(split)
    return engine


def with_layers_on_the_cpu(package: Path, count: int) -> Engine:
    """Before two GPUs, of which the last one has what one would have with a layer more on the CPU."""
    rest = budget_for_layers(package, count + 1, CONTEXT, 3)
    first = budget_for_layers(package, count, CONTEXT, 3) - rest + (1 << 30) + (64 << 10)
    engine = load(package, device="cuda:0,cuda:0", gpu_memory=[first, rest], context=CONTEXT, sequences=3)
    assert [layers for layers, _ in parts_of(engine)] == [count, 1, LAYERS - count - 1]
    assert host_layers(engine) == count
    return engine


@pytest.mark.parametrize(
    ("geometry", "options"),
    [
        ("tiny-dense", {}),
        ("tiny-moe", {}),
        ("tiny-next", {}),
        ("tiny-streams", {}),
        ("tiny-sparse", {}),
        ("tiny-moe", {"kv_type": "q8_0"}),
        ("tiny-streams", {"kv_type": "q8_0"}),
        ("tiny-moe", {"drafter": "dflash2"}),
    ],
)
def test_rows_have_the_bits_of_the_whole_model(packages: Packages, geometry: str, options: dict[str, Any]) -> None:
    """Of prompts, in pieces too, verifies with rejects, drafts and several sequences; with n-grams and streams, too."""
    package = packages(geometry, "mixed", **options)
    expected = rows_of_steps(engine_of(package))
    for number, split in enumerate(CUTS):
        assert rows_of_steps(engine_of(package, split, chunk=8 if number % 2 else None)) == expected, split


def test_doctor_checks_all_parts(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    package = packages("tiny-moe", "mixed")
    monkeypatch.setattr(examine, "instruction_sets", tuple)
    monkeypatch.setattr(examine, "make_packages", lambda folder: {"the model": package})
    monkeypatch.setattr(examine, "recorded_bits", lambda: {"the model": package_bits(package)})
    found = examine.examine("cuda:0,cuda:0")
    assert [finding.kernels for finding in found.findings] == ["cuda:0,cuda:0"] and found.agrees, found.findings


@pytest.mark.parametrize("geometry", ["tiny-dense", "tiny-moe"])
def test_with_layers_on_the_cpu(packages: Packages, geometry: str) -> None:
    package = packages(geometry, "Q4_K_M")
    assert rows_of_steps(with_layers_on_the_cpu(package, 1)) == rows_of_steps(engine_of(package))


def test_with_experts_on_the_cpu(packages: Packages) -> None:
    package = packages("tiny-moe", "Q4_K_M")
    expected = rows_of_steps(engine_of(package))
    for split in CUTS:
        found = engine_of(package, split, experts="cpu")
        assert sum("routed experts" in notice for notice in found.model.notices) == 1
        assert all(isinstance(source, CudaWeightSource) and source.reads_mapped for _, source in parts_of(found))
        assert rows_of_steps(found) == expected, split


def test_images(seeing: SeeingPackages) -> None:
    folder, prompt = seeing("tiny-moe", "Q4_K_M", "F16"), prompt_of(2, (3, 2), 2)
    found = []
    for split in ((), *CUTS):
        request = engine_of(folder, split).generate(
            prompt, Options(Sampling(seed=3), max_tokens=8, ignore_eos=True, draft_tokens=2)
        )
        request.run()
        found.append(request.ids)
    assert found == found[:1] * len(found)


def test_streams_that_move_are_those_that_stay(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 12 tokens, with their state, between engines that are cut in other places."""
    monkeypatch.setattr(PrefillSpeed, "seconds", lambda _, tokens: 1e9)
    package = packages("trained", "Q8_0")
    whole, cut, other = (engine_of(package, split) for split in ((), (1, 3), (2, 1, 1)))
    for name, option in list(asked(30).items())[2:]:
        expected = whole.generate("In the beginning", option)
        text = expected.run()
        for pair in ((cut, whole), (cut, other)):
            found = moved_between(pair, "In the beginning", option, 12)
            assert (found.request.text, found.request.ids) == (text, expected.ids), name
            assert found.moves == found.states > 0


def test_checkpoints_and_session_files(packages: Packages, tmp_path: Path) -> None:
    """The state of a text is the same bytes, and what one engine leaves the others go on from."""
    package, prompt = packages("tiny-dense", "Q4_K_M"), list(range(3, 100))
    option, more = Options(Sampling(seed=5), max_tokens=8, ignore_eos=True, draft_tokens=2), [7, 8]
    engines = {str(split): engine_of(package, split) for split in ((), (1, 3), (3, 1))}
    bits, texts, files = [], [], []
    for name, engine in engines.items():
        sequence = engine.steps.new_sequence()
        engine.steps.prefill([sequence], [prompt])
        engine.steps.verify([sequence], [[5, 6, 7]])
        engine.steps.keep(sequence, 2)
        bits.append(sequence_bits(engine, sequence))
        engine.steps.release(sequence)
        engine.generate(prompt, option).run()
        reused = engine.generate([*prompt, *more], option)
        texts.append(reused.run())
        assert reused.stats.reused_tokens > 0
        engine.cache.save(tmp_path / name, engine.identity, [*prompt, *more])
        engine.cache.clear()
        files.append((tmp_path / name).read_bytes())
    assert bits[0] == bits[1] == bits[2] and texts[0] == texts[1] == texts[2] and files[0] == files[1] == files[2]
    for name, engine in zip(reversed(engines), engines.values(), strict=True):
        engine.cache.load(SessionFile(tmp_path / name, engine.identity, engine.steps))
        reused = engine.generate([*prompt, *more], option)
        assert reused.run() == texts[0] and reused.stats.reused_tokens > 0


def test_by_memory(packages: Packages) -> None:
    """Equally fast GPUs share; the first layer comes with the embedding. What lies where is said."""
    package = packages("tiny-dense", "Q4_K_M")
    engine = load(package, device="cuda:0,cuda:0,cuda:0", context=CONTEXT, sequences=3)
    assert [layers for layers, _ in parts_of(engine)] == [1, 2, 1]
    (told,) = [notice for notice in engine.model.notices if "holds" in notice]
    assert told.startswith("cuda:0 holds layer 1, 0.0 GB of weights and 0.0 GB of state; cuda:0 holds layers 2 to 3, ")
    assert (
        "; cuda:0 holds layer 4, " in told and "and the output head; a token reads at most 0.00 GB of cuda:0's" in told
    )


@pytest.mark.parametrize(
    ("device", "settings", "words"),
    [
        (
            "cuda:0,cpu",
            {},
            "device is cuda:0,cpu; only cuda:N can be several, and the CPU computes what does not fit",
        ),
        ("cuda:0,", {}, "device is ; it must be one of auto, cpu, cuda"),
        ("cuda:0,cuda:0", {"gpu_memory": [1 << 33] * 3}, "gpu_memory is .*, and the device cuda:0,cuda:0; give one"),
        ("cuda:0,cuda:0", {"split": [1, 2, 3]}, "split is .*, and the device cuda:0,cuda:0; give one number for each"),
        ("cuda:0,cuda:0", {"split": [1, 0]}, "split is 0; it must be above 0"),
        ("cuda:0,cuda:0", {"split": "1,2"}, "split is '1,2'; it must be a number"),
        ("cuda:0,cuda:0", {"gpu_memory": [1 << 33, 1 << 40]}, "gpu_memory is 1,099.51 GB, and cuda:0 has 17.18 GB in"),
        ("cuda:0,cuda:0", {"gpu_memory": [1 << 33, 1 << 30]}, "the last GPU may take 1.07 GB, and the model needs 1.0"),
        ("cpu", {"split": [1]}, "split is for a GPU, and the device is cpu; use device=cuda, or leave it out"),
    ],
)
def test_settings_that_cannot_be(packages: Packages, device: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(TrigraphError, match=words):
        load(packages("tiny-dense", "Q4_K_M"), device=device, context=CONTEXT, **settings)
