"""Weights that are repacked while requests run: the steps change over between any two of them, and no bit differs."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from support.marks import slow_after
from support.models.packages import Packages
from support.operators.run import LIBRARY
from support.requests.promise import draft_chains, row_bits, sequence_bits
from trigraph.exporter import read_manifest
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.device import choice
from trigraph.runtime.device.exchange import Array
from trigraph.runtime.device.repack import weights as repacked
from trigraph.runtime.device.repack.weights import SIDE_BY_SIDE, RepackedWeights, _Plain
from trigraph.runtime.device.weight_source import WeightSource
from trigraph.runtime.execution import repacking
from trigraph.runtime.execution.package_graphs import PackageGraphs
from trigraph.runtime.execution.parts import Part

pytestmark = pytest.mark.skipif(LIBRARY == "cuda", reason="weights are repacked for the CPU")
sets = pytest.mark.parametrize("isa", SIDE_BY_SIDE, indirect=True)
MODELS = [("tiny-moe", "Q4_K_M"), ("tiny-next", "Q4_K_M"), ("tiny-streams", "Q4_K_M")]
GREEDY = Options(Sampling(temperature=0), max_tokens=24, ignore_eos=True)
PROMPT = [*range(40, 60)]


@pytest.fixture
def folder(isa: str, packages: Packages, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    monkeypatch.setattr(choice, "instruction_set", lambda: isa)
    return packages(*request.param, activations="int8", kv_type="f16")


@pytest.fixture
def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repacking, "LEAST_BYTES", 0)
    monkeypatch.setattr(repacking, "_START", 0)


def changes(engine: Engine, folder: Path) -> list[Callable[[], None]]:
    """What has the steps read repacked weights, and plain ones again, both on the engine's state."""
    steps, device, mapped = engine.steps, engine.model.device, engine.model.weights
    plain = PackageGraphs(folder, read_manifest(folder), [Part(device, WeightSource(mapped))], 1)
    found: list[Callable[[], None]] = []
    for graphs in (replace(plain, parts=[Part(device, RepackedWeights(mapped, device.kernels))]), plain):
        opened = [graphs.open(graphs.prepare(name), steps.state) for name in ("prefill", "verify", "draft")]
        found.append(partial(steps.change_over, *opened))
    return found


def at_step(at: int, change: Callable[[], None]) -> Callable[[int], None]:
    """Calls `change` before step `at`."""

    def changed(number: int) -> None:
        if number == at:
            change()

    return changed


def text(engine: Engine, change: Callable[[int], None]) -> list[object]:
    """The bits of two sequences, prefilled in pieces, drafted, verified, accepted in part and decoded.

    `change` is called before each step with its number.
    """
    steps, number, found = engine.steps, iter(range(1000)), list[object]()
    pair = [steps.new_sequence(), steps.new_sequence()]
    for part in (PROMPT[:7], PROMPT[7:]):
        change(next(number))
        found += row_bits(steps.prefill(pair, [part, part[:5]]))
    for kept in (1, 3, 0, 2):
        change(next(number))
        found += draft_chains(engine, pair, [3, 4])
        change(next(number))
        found += row_bits(steps.verify(pair, [[3, 9, 17, 4], [4, 8]]))
        for sequence, count in zip(pair, (kept, min(kept, 2)), strict=True):
            steps.keep(sequence, count)
    for sequence in pair:
        change(next(number))
        found.append(sequence_bits(engine, sequence))
        steps.release(sequence)
    return found


@sets
@pytest.mark.parametrize("folder", slow_after(1, MODELS), indirect=True)
def test_a_change_between_any_two_steps(folder: Path) -> None:
    engine = load(folder, context=100, sequences=2, repack="off", threads=1)
    numbers: list[int] = []
    expected = text(engine, numbers.append)
    forth, back = changes(engine, folder)
    for at in numbers:
        assert text(engine, at_step(at, forth)) == expected, at
        back()
    assert text(engine, lambda number: (back if number % 2 else forth)()) == expected


@sets
@pytest.mark.parametrize("folder", MODELS[:1], indirect=True)
def test_requests_meanwhile(folder: Path, small_models: None) -> None:
    plain = load(folder, context=200, repack="off")
    wanted = [plain.generate([*PROMPT, i], GREEDY) for i in range(8)]
    for request in wanted:
        request.run()
    with load(folder, context=200) as engine:
        running = [engine.submit([*PROMPT, i], GREEDY) for i in range(8)]
        for request in running:
            request.run()
        assert engine.model.repacking is not None
        engine.model.repacking.wait()
        assert engine.model.weight_layout == "repacked"
        after = engine.generate([*PROMPT, 3], GREEDY)
        after.run()
    assert [list(request.ids) for request in running] == [list(request.ids) for request in wanted]
    assert list(after.ids) == list(wanted[3].ids)


@sets
@pytest.mark.parametrize("folder", MODELS[:1], indirect=True)
@pytest.mark.parametrize(("share", "layout"), [(0.5, "repacked"), (1e-6, "plain: repacking takes")])
def test_a_replica_has_its_share_of_memory(
    folder: Path, small_models: None, monkeypatch: pytest.MonkeyPatch, share: float, layout: str
) -> None:
    monkeypatch.setattr(repacking, "free_memory", lambda: 1 << 30)
    with load(folder, context=200, memory_share=share) as engine:
        if engine.model.repacking is not None:
            engine.model.repacking.wait()
        assert engine.model.weight_layout.startswith(layout)


@sets
@pytest.mark.parametrize("folder", MODELS[:1], indirect=True)
def test_nothing_is_copied_beside_a_first_prompt(
    folder: Path, small_models: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = threading.Event()
    copy_piece = _Plain.copy_piece

    def noticed(weight: _Plain, copy: Array, first: int) -> None:
        copied.set()
        copy_piece(weight, copy, first)

    monkeypatch.setattr(_Plain, "copy_piece", noticed)
    monkeypatch.setattr(repacking, "_START", 0.5)
    monkeypatch.setattr(repacking, "_GRACE", 0)
    with load(folder, context=200) as engine:
        assert engine.model.repacking is not None
        with engine.steps.lock:  # as while a step runs
            engine.steps.prefilling = True
            assert not copied.wait(1)
            engine.steps.prefilling = False
            assert copied.wait(60)
        engine.model.repacking.wait()
        assert engine.model.weight_layout == "repacked"


@sets
@pytest.mark.parametrize("folder", MODELS[:1], indirect=True)
def test_a_dropped_model_ends_it(folder: Path, small_models: None) -> None:
    engine = load(folder, context=200)
    running, steps = engine.model.repacking, weakref.ref(engine.steps)
    assert running is not None
    del engine
    gc.collect()
    running.wait()
    assert steps() is None


@sets
@pytest.mark.parametrize("folder", MODELS[:1], indirect=True)
def test_a_closed_model_ends_it(folder: Path, small_models: None) -> None:
    engine = load(folder, context=200)
    running = engine.model.repacking
    assert running is not None
    engine.close()
    running.wait()
    assert engine.model.weight_layout in ("plain", "repacked")


@sets
@pytest.mark.parametrize("folder", MODELS[:1], indirect=True)
def test_memory_that_runs_short(folder: Path, small_models: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repacked, "free_memory", lambda: 10_000)
    engine = load(folder, context=200)
    assert engine.model.repacking is not None
    engine.model.repacking.wait()
    assert engine.model.weight_layout.startswith("plain, as repacking has failed: repacked weights take")
    engine.generate(PROMPT, GREEDY).run()


@sets
@pytest.mark.parametrize("folder", MODELS[:1], indirect=True)
def test_too_little_memory(folder: Path, small_models: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repacking, "free_memory", lambda: 100_000)
    engine = load(folder, context=200)
    assert engine.model.repacking is None
    assert engine.model.weight_layout.startswith("plain: repacking takes 0.0 GB of memory, of which 0.0 GB can be had")


@pytest.mark.parametrize("repack", ["yes", True])
def test_other_words(repack: object, packages: Packages) -> None:
    with pytest.raises(TrigraphError, match="repack"):
        load(packages("tiny-moe", "F32"), repack=repack)  # type: ignore[arg-type]
