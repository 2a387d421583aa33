"""Models with residual streams, whose table of n-grams stays in the host's memory: the CPU's bits, captured too."""

from pathlib import Path

import numpy as np
import pytest

from support.devices.fake_cuda import FakeDevice, copied, count
from support.devices.placed import budget_for
from support.models.small_streams import write_streams
from support.requests.promise import draft_chains, row_bits
from trigraph.exporter import ExportOptions, export, read_manifest
from trigraph.exporter.package.external import load_graph
from trigraph.models.synth import write_synthetic
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.device.mapped_weights import table_bytes
from trigraph.runtime.requests.stats import peak_memory

CONTEXT, TOP = 128, 8
EDGE = (TOP + 1) * 4
"""A text of so many tokens has a row that does not see all before it."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, operator_library: Path) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    export(
        write_streams(folder / "model.gguf", top=TOP, quant="Q4_K_M", rows=20_000), folder / "package", ExportOptions()
    )
    return folder / "package"


def random_tokens(engine: Engine, length: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, engine.steps.vocab, length)]


def texts(engine: Engine) -> list[list[int]]:
    """Greedy and sampled, plain and with drafts, alone; then three together. All come to the edge, and go on."""
    prompt, found = random_tokens(engine, EDGE - 5, 1), []
    for sampling, drafts in ((Sampling(temperature=0), 0), (Sampling(temperature=0), 3), (Sampling(seed=7), 3)):
        request = engine.generate(prompt, Options(sampling, max_tokens=12, ignore_eos=True, draft_tokens=drafts))
        request.run()
        found.append(request.ids)
    together = [
        engine.submit(prompt[i:], Options(Sampling(seed=i), max_tokens=12, ignore_eos=True, draft_tokens=3 - i))
        for i in range(3)
    ]
    return found + [request.ids for request in together if request.result() is not None]


def rows(engine: Engine) -> list[object]:
    """Of verifies of two texts with rejects, each shape seen first with tokens to commit, and of drafts."""
    steps = engine.steps
    sequences = [steps.new_sequence() for _ in range(2)]
    prompts = [random_tokens(engine, length, length) for length in (EDGE - 3, 2 * EDGE + 1)]
    found: list[object] = [row_bits(steps.prefill(sequences, prompts))]
    for kept, lengths in ((2, (4, 1)), (0, (1, 4)), (2, (4, 4)), (1, (8, 0)), (3, (8, 0)), (1, (1, 0)), (1, (1, 0))):
        members = [sequence for sequence, length in zip(sequences, lengths, strict=True) if length]
        tokens = [random_tokens(engine, length, length) for length in lengths if length]
        found.append(row_bits(steps.verify(members, tokens)))
        for sequence, own in zip(members, tokens, strict=True):
            steps.keep(sequence, min(kept, len(own)))
        found.append(draft_chains(engine, members[:1], [11]))
    return found


@pytest.mark.parametrize(("graphs", "share"), [("0", 1), ("1", 1), ("1", 0.5)])
def test_the_cpus_bits(package: Path, monkeypatch: pytest.MonkeyPatch, graphs: str, share: float) -> None:
    """`share`: of the experts that the GPU holds."""
    monkeypatch.setenv("TRIGRAPH_CUDA_GRAPHS", graphs)
    on_cpu = load(package, device="cpu", context=CONTEXT, sequences=3)
    budget = budget_for(package, share, context=CONTEXT, sequences=3)
    on_gpu = load(package, device="cuda", gpu_memory=budget, context=CONTEXT, sequences=3)
    held = [notice for notice in on_gpu.model.notices if "the GPU holds" in notice]
    assert bool(held) == (share < 1)
    assert texts(on_gpu) == texts(on_cpu)
    assert rows(on_gpu) == rows(on_cpu)


def test_the_table_is_never_copied(package: Path, gpu: FakeDevice) -> None:
    """All other weights are, once; of the table, a step's rows."""
    manifest = read_manifest(package)
    table, file = table_bytes(load_graph(package / "verify.onnx").graph), sum(f.bytes for f in manifest.weight_files)
    before = gpu.allocated()
    gpu.events()
    engine = load(package, device="cuda", context=CONTEXT, sequences=1)
    taken = gpu.allocated() - before - engine.steps.state.nbytes()
    assert table > 0.05 * file and taken < 1.01 * (file - table)
    assert copied(gpu.events(), "pinned", "device") < 1.01 * (file - table)


def test_what_a_captured_step_does(package: Path, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """One replay, in which the host is asked once, and nothing is waited for but the end."""
    monkeypatch.setenv("TRIGRAPH_CUDA_GRAPHS", "1")
    engine = load(package, device="cuda", context=CONTEXT, sequences=1)
    sequence = engine.steps.new_sequence()
    engine.steps.prefill([sequence], [random_tokens(engine, EDGE + 5, 1)])
    gpu.events()
    engine.steps.verify([sequence], [[4, 5]])
    first = gpu.events()
    assert count(first, "capture ends") == 1 and not count(first, "error")
    assert count(first, "captured host function") == 1
    assert not count(first, "captured foreign")
    engine.steps.verify([sequence], [[6, 7]])
    again = gpu.events()
    assert count(again, "replay") == count(again, "wait") == 1
    assert not [event for event in again if event.startswith(("launch", "capture", "allocate", "free", "error"))]


def test_a_table_of_real_size_stays_where_it_is(tmp_path: Path, gpu: FakeDevice, operator_library: Path) -> None:
    """35 GB in a sparse file: neither the host nor the device takes memory for it."""
    path = tmp_path / "model.gguf"
    write_synthetic("qwen3.8-flash-next", path, layers=2, vocab=320, experts=2, quant="Q8_0")
    export(path, tmp_path / "package", ExportOptions())
    before, most = gpu.allocated(), peak_memory()
    engine = load(tmp_path / "package", device="cuda", context=64, sequences=1)
    assert gpu.allocated() - before - engine.steps.state.nbytes() < 1_000_000_000 < path.stat().st_size / 35
    assert (peak_memory() or 0) - (most or 0) < 1_500_000_000
