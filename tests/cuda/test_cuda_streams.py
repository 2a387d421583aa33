"""Models with residual streams on the emulated GPU: the CPU's bits, with rows that see all and rows that choose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.models.small_streams import write_streams
from support.requests.moved import moved_between
from support.requests.promise import draft_chains, row_bits, sequence_bits
from trigraph.exporter import ExportOptions, export
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.execution.prefill_speed import PrefillSpeed

CONTEXT = 160
TOP = 8
EDGE = (TOP + 1) * 4
"""A text of so many tokens has a row that does not see all before it."""


@pytest.fixture(autouse=True)
def emulated(emulator: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--device cuda` is the emulator."""
    monkeypatch.setenv("TRIGRAPH_LIBRARY_DIR", str(emulator))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_streams(tmp_path_factory.mktemp("source") / "model.gguf", top=TOP, quant="Q4_K_M")


def exported(source: Path, **options: str) -> Path:
    """A package of the file, made once."""
    out = source.parent / "-".join(("package", *options.values()))
    if not out.exists():
        export(source, out, ExportOptions(weights="reference", **options))  # type: ignore[arg-type]
    return out


def both(package: Path, monkeypatch: pytest.MonkeyPatch, experts: str = "gpu") -> tuple[Engine, Engine]:
    """On the emulated GPU, and on portable kernels of the CPU."""
    on_gpu = load(package, device="cuda", context=CONTEXT, sequences=4, experts=experts)
    monkeypatch.setenv("TRIGRAPH_ISA", "portable")
    return on_gpu, load(package, device="cpu", context=CONTEXT, sequences=4)


def random_tokens(engine: Engine, count: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, engine.steps.vocab, count)]


def rows(engine: Engine) -> list[object]:
    """Of three texts that come to the edge, stand at it and are behind it; verifies with rejects; drafts; forks."""
    steps = engine.steps
    prompts = [random_tokens(engine, length, length) for length in (EDGE - 9, EDGE, 3 * EDGE - 2)]
    sequences = [steps.new_sequence() for _ in prompts]
    found: list[object] = [row_bits(steps.prefill(sequences, prompts))]
    for kept, new in ((2, (3, 1, 4)), (0, (1, 4, 2)), (4, (4, 4, 4)), (1, (8, 2, 1))):
        tokens = [random_tokens(engine, count, 100 + count) for count in new]
        found.append(row_bits(steps.verify(sequences, tokens)))
        for sequence, own in zip(sequences, tokens, strict=True):
            steps.keep(sequence, min(kept, len(own)))
        found.append(draft_chains(engine, sequences, [4, 5, 6]))
    child = steps.fork(sequences[2])
    found.append([row_bits(steps.verify([text], [[7, 8]])) for text in (child, sequences[2], sequences[0])])
    steps.keep(sequences[2], 1)
    return [*found, sequence_bits(engine, sequences[2])]


@pytest.mark.parametrize(
    ("kv_type", "activations"), [("f16", "int8"), ("f32", "int8"), ("q8_0", "int8"), ("f16", "float32")]
)
def test_steps(source: Path, monkeypatch: pytest.MonkeyPatch, kv_type: str, activations: str) -> None:
    on_gpu, on_cpu = both(exported(source, kv_type=kv_type, activations=activations), monkeypatch)
    assert on_gpu.model.kernels == "CUDA"
    assert rows(on_gpu) == rows(on_cpu)


def test_experts_on_the_cpu(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu, on_cpu = both(exported(source), monkeypatch, experts="cpu")
    assert any("the CPU computes the other experts" in notice for notice in on_gpu.model.notices)
    assert rows(on_gpu) == rows(on_cpu)


def test_a_prompt_in_pieces(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state's bits, too, wherever groups and the edge are cut."""
    on_gpu, on_cpu = both(exported(source), monkeypatch)
    text, found = random_tokens(on_cpu, 2 * EDGE + 7, 1), []
    for cuts in ((), (EDGE - 2, EDGE - 1, EDGE), (1, 2, 5, 40, 75)):
        sequence, ends = on_gpu.steps.new_sequence(), [*cuts, len(text)]
        for start, end in zip([0, *cuts], ends, strict=True):
            on_gpu.steps.prefill([sequence], [text[start:end]])
        found.append(sequence_bits(on_gpu, sequence))
        on_gpu.steps.release(sequence)
    sequence = on_cpu.steps.new_sequence()
    on_cpu.steps.prefill([sequence], [text])
    assert found == [sequence_bits(on_cpu, sequence)] * 3


def test_texts(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy and sampled, with and without drafts, from a cached prefix, two together, across the edge."""
    on_gpu, on_cpu = both(exported(source), monkeypatch)
    prompt = random_tokens(on_cpu, EDGE - 6, 3)

    def texts(engine: Engine) -> list[list[int]]:
        options = [
            Options(sampling, max_tokens=14, ignore_eos=True, draft_tokens=drafts)
            for sampling, drafts in ((Sampling(temperature=0), 0), (Sampling(temperature=0), 3), (Sampling(seed=7), 2))
        ]
        requests = [engine.generate(prompt, option) for option in options]
        for request in requests:
            request.run()
        together = [engine.submit(prompt[i:], options[1 + i]) for i in range(2)]
        return [request.ids for request in requests] + [
            request.ids for request in together if request.result() is not None
        ]

    assert texts(on_gpu) == texts(on_cpu)


def test_the_published_edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """512 groups: a text of 2,048 tokens that the CPU has read goes on on both in turns, with drafts."""
    package = exported(write_streams(tmp_path / "model.gguf", quant="Q4_K_M"))
    monkeypatch.setattr(PrefillSpeed, "seconds", lambda _, tokens: 1e9)  # so that state moves with it
    on_cpu, on_gpu = (load(package, device=device, context=2200, sequences=2) for device in ("cpu", "cuda"))
    prompt = random_tokens(on_cpu, 2043, 4)
    option = Options(Sampling(temperature=0), max_tokens=16, ignore_eos=True, draft_tokens=3)
    wanted = on_cpu.generate(prompt, option)
    wanted.run()
    found = moved_between((on_cpu, on_gpu), prompt, option, 2)
    assert found.request.ids == wanted.ids and found.states == found.moves >= 3
