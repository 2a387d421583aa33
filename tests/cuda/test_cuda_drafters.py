"""Block drafters on the emulated GPU: the CPU's bits in blocks and state, and texts that drafts do not change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.devices.placed import budget_for_layers, host_layers, parts_of
from support.models.packages import Packages
from support.requests.moved import PROMPTS, asked, moved_between
from support.requests.promise import draft_chains, row_bits, sequence_bits
from support.requests.random_requests import requests_of
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.bench.replay import replaying
from trigraph.runtime.execution.prefill_speed import PrefillSpeed

CONTEXT = 160
# geometry, quantisation, keys and values, kind
MODELS = [
    ("trained", "Q8_0", "f16", "dflash2-sliding"),
    ("tiny-dense", "Q4_K_M", "f16", "dspark"),
    ("tiny-moe", "Q4_K_M", "q8_0", "dflash-sliding"),
    ("tiny-next", "mixed", "f32", "dflash2-sliding"),
]
PROMPT_ROWS = ([*range(3, 80)], [7, 1], [9, 8, 7, 6, 5])


@pytest.fixture(autouse=True)
def emulated(emulator: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--device cuda` is the emulator."""
    monkeypatch.setenv("TRIGRAPH_LIBRARY_DIR", str(emulator))


@pytest.fixture(params=MODELS, ids="-".join)
def package(packages: Packages, request: pytest.FixtureRequest) -> Path:
    geometry, quant, kv_type, kind = request.param
    return packages(geometry, quant, kv_type=kv_type, drafter=kind)


@pytest.fixture
def opened() -> Iterator[list[Engine]]:
    """Engines that are closed at the test's end."""
    engines: list[Engine] = []
    yield engines
    for engine in engines:
        engine.close()


def rows(engine: Engine) -> list[object]:
    """Of three texts, one of more than a page: verifies with rejects, drafts behind them, and all that is kept."""
    steps = engine.steps
    sequences = [steps.new_sequence() for _ in PROMPT_ROWS]
    found: list[object] = [row_bits(steps.prefill(sequences, PROMPT_ROWS))]
    for kept, new in ((2, [[4, 5, 6], [1], [2, 3]]), (0, [[8], [9, 10, 11, 12], [3]])):
        found.append(row_bits(steps.verify(sequences, new)))
        for sequence, own in zip(sequences, new, strict=True):
            steps.keep(sequence, min(kept, len(own)))
        found.append(draft_chains(engine, sequences, [4, 5, 6]))
    return [*found, [sequence_bits(engine, sequence) for sequence in sequences]]


def test_steps_have_the_bits_of_the_portable_kernels(
    package: Path, opened: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened += [load(package, device="cuda", context=CONTEXT, sequences=3)]
    assert opened[0].model.kernels == "CUDA"
    monkeypatch.setenv("TRIGRAPH_ISA", "portable")
    opened += [load(package, device="cpu", context=CONTEXT, sequences=3)]
    assert rows(opened[0]) == rows(opened[1])


@pytest.mark.parametrize("on_host", [1, 4])
def test_layers_on_the_cpu(
    packages: Packages, opened: list[Engine], monkeypatch: pytest.MonkeyPatch, on_host: int
) -> None:
    """The drafter reads what enters layers on either side."""
    package = packages("tiny-moe", "Q4_K_M", kv_type="f16", drafter="dflash2-sliding")
    budget = budget_for_layers(package, on_host, context=CONTEXT, sequences=3)
    opened += [load(package, device="cuda", gpu_memory=budget, context=CONTEXT, sequences=3)]
    assert host_layers(opened[0]) == on_host
    monkeypatch.setenv("TRIGRAPH_ISA", "portable")
    opened += [load(package, device="cpu", context=CONTEXT, sequences=3)]
    assert rows(opened[0]) == rows(opened[1])


@pytest.mark.parametrize("split", [(1, 3), (3, 1)])
def test_layers_on_another_gpu(
    packages: Packages, opened: list[Engine], monkeypatch: pytest.MonkeyPatch, split: tuple[int, int]
) -> None:
    package = packages("tiny-moe", "Q4_K_M", kv_type="f16", drafter="dflash2")
    opened += [load(package, device="cuda:0,cuda:0", split=split, context=CONTEXT, sequences=3)]
    assert [layers for layers, _ in parts_of(opened[0])] == [*split]
    monkeypatch.setenv("TRIGRAPH_ISA", "portable")
    opened += [load(package, device="cpu", context=CONTEXT, sequences=3)]
    assert rows(opened[0]) == rows(opened[1])


@pytest.mark.slow
def test_texts(package: Path, opened: list[Engine]) -> None:
    """Greedy, sampled, penalised and constrained ones in one batch, by blocks, chains or what the policy takes.

    Known texts stand in for drafts, as random drafters are hardly ever right; their runs are real.
    """
    opened += [
        load(package, device="cpu", context=CONTEXT, sequences=4, speculation=False),
        load(package, device="cuda", context=CONTEXT, sequences=4),
    ]
    requests = requests_of(opened[0].vocab, 6, seed=3)
    answers = [opened[0].generate(one.prompt, replace(one.options, draft_tokens=0)) for one in requests]
    for answer in answers:
        answer.run()
    engine = opened[1]
    texts = [[*one.prompt, *answer.ids] for one, answer in zip(requests, answers, strict=True)]
    engine._driver.scheduler.__dict__["executor"] = replaying(engine.executor, texts, 0.8)
    sources = [{"drafter": drafter, "draft_tokens": 5} for drafter in ("block", "mtp", "block")] + [{}] * len(requests)
    handles = [
        engine.submit(one.prompt, replace(one.options, **how))  # type: ignore[arg-type]
        for one, how in zip(requests, sources, strict=False)
    ]
    for handle, answer in zip(handles, answers, strict=True):
        handle.result()
        assert handle.ids == answer.ids
    assert sum(handle.stats.accepted for handle in handles) > len(requests)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(seed=7), Sampling(seed=7, repeat_penalty=1.1)])
def test_blocks_draft_what_they_draft_on_the_cpu(packages: Packages, opened: list[Engine], sampling: Sampling) -> None:
    """So as many drafts are accepted."""
    package, found = packages("trained", "Q8_0", kv_type="f16", drafter="dflash2"), []
    for floor in (None, 0.3):
        options = Options(sampling, 12, ignore_eos=True, draft_tokens=7, drafter="block", draft_p_min=floor)
        for device in ("cpu", "cuda"):
            opened += [load(package, device=device, context=CONTEXT)]
            request = opened[-1].generate(PROMPTS[0], options)
            request.run()
            found.append((request.ids, request.stats.rounds, request.stats.drafted, request.stats.accepted))
    assert found[0] == found[1] and found[2] == found[3]
    assert found[0][0] == found[2][0]


def test_requests_move_between_cpu_and_gpu(
    packages: Packages, opened: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrefillSpeed, "seconds", lambda _, tokens: 1e9)  # so that state moves with it
    package = packages("trained", "Q8_0", kv_type="f16", drafter="dflash2-sliding")
    opened += [load(package, device=device, context=CONTEXT, sequences=2) for device in ("cpu", "cuda")]
    options = replace(asked(30)["drafted"], drafter="block")
    whole = opened[0].generate(PROMPTS[0], options)
    whole.run()
    found = moved_between((opened[0], opened[1]), PROMPTS[0], options, 7)
    assert found.request.ids == whole.ids and found.states == found.moves >= 3
