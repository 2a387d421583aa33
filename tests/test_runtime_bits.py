"""Rows of a step are the same, bit for bit, whatever shares the step, whatever was rejected before, and wherever the
prompt was cut."""

from pathlib import Path

import numpy as np
import pytest

from support.operators import LIBRARY
from support.packages import Packages
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, load
from trigraph.runtime.state.sequence import Sequence

# geometry, quantisation, activations
MODELS = [
    ("trained", "Q8_0", "float32"),
    ("trained", "Q8_0", "int8"),
    ("tiny-dense", "F32", "float32"),
    ("tiny-dense", "Q4_K_M", "float32"),
    ("tiny-moe", "F32", "float32"),
    ("tiny-moe", "Q4_K_M", "float32"),
    ("tiny-moe", "Q4_K_M", "int8"),
    ("tiny-next", "Q4_K_M", "float32"),
]
K = 8

Model = tuple[str, str, str]


def package(packages: Packages, model: Model, **options: str) -> Path:
    geometry, quant, activations = model
    return packages(geometry, quant, activations=activations, **options)


@pytest.fixture(params=[1, 2], ids=lambda n: f"{n}-threads")
def threads(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=MODELS, ids="-".join)
def engine(request: pytest.FixtureRequest, packages: Packages, threads: int) -> Engine:
    return load(package(packages, request.param), threads=threads, context=600, sequences=6, device=LIBRARY)


def tokens(engine: Engine, count: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, engine.steps.vocab, count)]


def started(engine: Engine, prompt: list[int]) -> Sequence:
    sequence = engine.steps.new_sequence()
    engine.steps.prefill([sequence], [prompt])
    return sequence


def rows(engine: Engine, sequences: list[Sequence], new: list[list[int]]) -> list[tuple[bytes, bytes, int]]:
    """A verify's rows as bits: logits, hidden, token."""
    result = engine.steps.verify(sequences, new)
    return [
        (result.logits[i].tobytes(), result.hidden[i].tobytes(), int(result.tokens[i]))
        for i in range(len(result.tokens))
    ]


def decoded(engine: Engine, sequence: Sequence, new: list[int]) -> list[tuple[bytes, bytes, int]]:
    """The same tokens one by one, all kept."""
    found = []
    for token in new:
        found += rows(engine, [sequence], [[token]])
        engine.steps.accept(sequence, 1)
    return found


def committed(engine: Engine, sequence: Sequence) -> dict[str, bytes]:
    """The state of a text after a verify, which has committed all of it."""
    found = {}
    for name, tensor in engine.steps.state.tensors.items():
        if name.startswith("kv."):
            pages = tensor[sequence.pages[: sequence.page_count]]
            found[name] = pages.reshape(-1, *pages.shape[2:])[: sequence.length].tobytes()
        elif name.endswith(".state"):
            found[name] = tensor[sequence.slot].tobytes()
        elif name.endswith(".window"):
            found[name] = tensor[sequence.slot, :3].tobytes()
    return found


def test_a_verify_of_k_tokens_is_k_decodes(engine: Engine) -> None:
    for k in range(1, K + 1):
        prompt, new = tokens(engine, 20 + k, k), tokens(engine, k, 100 + k)
        together, alone = started(engine, prompt), started(engine, prompt)
        assert rows(engine, [together], [new]) == decoded(engine, alone, new)
        engine.steps.accept(together, k)
        assert rows(engine, [together], [[1]]) == rows(engine, [alone], [[1]])
        assert committed(engine, together) == committed(engine, alone)
        for sequence in (together, alone):
            engine.steps.release(sequence)


def test_a_sequence_does_not_notice_its_companions(engine: Engine) -> None:
    random = np.random.default_rng(3)
    for size in range(1, 5):
        prompts = [tokens(engine, int(random.integers(1, 150)), 10 * size + i) for i in range(size)]
        batch = [started(engine, prompt) for prompt in prompts]
        for round_number in range(3):
            new = [tokens(engine, int(random.integers(1, K + 1)), 100 + 7 * round_number + i) for i in range(size)]
            alone = []
            for sequence, mine in zip(batch, new, strict=True):
                copy = engine.steps.fork(sequence)
                alone += rows(engine, [copy], [mine])
                engine.steps.release(copy)
            assert rows(engine, batch, new) == alone
            for sequence, mine in zip(batch, new, strict=True):
                engine.steps.accept(sequence, int(random.integers(0, len(mine) + 1)))
        for sequence in batch:
            engine.steps.release(sequence)


def test_a_prefill_does_not_notice_its_companions(engine: Engine) -> None:
    prompts = [tokens(engine, count, count) for count in (70, 1, 33, 200)]
    batch = [engine.steps.new_sequence() for _ in prompts]
    together = engine.steps.prefill(batch, prompts)
    for i, prompt in enumerate(prompts):
        alone = engine.steps.new_sequence()
        row = engine.steps.prefill([alone], [prompt])
        assert row.logits[0].tobytes() == together.logits[i].tobytes()
        assert rows(engine, [alone], [[1, 2]]) == rows(engine, [batch[i]], [[1, 2]])
        assert committed(engine, alone) == committed(engine, batch[i])
        engine.steps.release(alone)


def test_200_rounds_of_accepting_and_rejecting(engine: Engine) -> None:
    """Every accept count 0..k for every k occurs; the state is that of plain decoding, and so is each kept row."""
    random = np.random.default_rng(9)
    combinations = [(k, kept) for k in range(1, K + 1) for kept in range(k + 1)]
    prompt = tokens(engine, 40, 1)
    speculative, plain = started(engine, prompt), started(engine, prompt)
    speculative_rows, texts = [], []
    order = random.permutation(len(combinations)).tolist()
    for i in range(200):
        if i < len(order):
            k, kept = combinations[order[i]]
        else:
            k = int(random.integers(1, K + 1))
            kept = int(random.integers(0, min(k, 2) + 1))
        new = tokens(engine, k, 1000 + i)
        speculative_rows += rows(engine, [speculative], [new])[:kept]
        engine.steps.accept(speculative, kept)
        texts += new[:kept]
    assert decoded(engine, plain, texts) == speculative_rows
    assert rows(engine, [speculative], [[3]]) == rows(engine, [plain], [[3]])
    assert committed(engine, speculative) == committed(engine, plain)
    assert speculative.tokens == prompt + texts


@pytest.mark.parametrize("model", MODELS, ids="-".join)
def test_the_number_of_threads_does_not_matter(packages: Packages, model: Model) -> None:
    found = []
    for threads in (1, 2, 3):
        engine = load(package(packages, model), threads=threads, context=600, device=LIBRARY)
        sequence = started(engine, tokens(engine, 90, 5))
        found.append((rows(engine, [sequence], [tokens(engine, 7, 6)]), committed(engine, sequence)))
    assert found[0] == found[1] == found[2]


def test_rejected_drafts_leave_no_trace(engine: Engine) -> None:
    """Rounds whose drafts are partly rejected, and the same tokens one by one: the next drafts are the same bits."""
    steps, prompt = engine.steps, tokens(engine, 30, 1)
    used, plain = started(engine, prompt), started(engine, prompt)
    for i, kept in enumerate((4, 1, 0, 6)):
        new = tokens(engine, 6, 2 + i)
        guess = steps.draft([used], [new[0]])
        for _ in range(5):
            guess = steps.draft_more([used], guess)
        steps.verify([used], [new])
        steps.accept(used, kept)
        decoded(engine, plain, new[:kept])
    assert chain(engine, used, 5) == chain(engine, plain, 5)


def chain(engine: Engine, sequence: Sequence, token: int) -> list[bytes]:
    """Three drafts after a token: their tokens, probabilities and hidden rows as bits."""
    guess, found = engine.steps.draft([sequence], [token]), []
    for _ in range(3):
        found += [guess.tokens.tobytes(), guess.probability.tobytes(), guess.hidden.tobytes()]
        guess = engine.steps.draft_more([sequence], guess)
    return found


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("model", MODELS, ids="-".join)
def test_where_a_prompt_is_cut_does_not_matter(packages: Packages, model: Model, kv_type: str) -> None:
    """A prompt in one prefill, in chunks of any size, and token by token: the same logits, state and drafts."""
    folder = package(packages, model, kv_type=kv_type)
    found = []
    for chunk in (200, 1, 7, 63, 64, 65, 199):
        engine = load(folder, threads=2, context=400, chunk=chunk, device=LIBRARY)
        prompt = tokens(engine, 200, 4)
        sequence = engine.steps.new_sequence()
        logits = engine.steps.prefill([sequence], [prompt]).logits[0].tobytes()
        found.append((logits, rows(engine, [sequence], [[1]]), committed(engine, sequence), chain(engine, sequence, 1)))
    assert all(other == found[0] for other in found)
    decoding = started(engine, prompt[:1])
    assert decoded(engine, decoding, prompt[1:])[-1][0] == found[0][0]
    assert rows(engine, [decoding], [[1]]) == found[0][1]
    assert (committed(engine, decoding), chain(engine, decoding, 1)) == found[0][2:]


def test_a_prompt_longer_than_the_context_is_refused(packages: Packages) -> None:
    engine = load(packages("trained", "Q8_0"), context=100, device=LIBRARY)
    with pytest.raises(TrigraphError, match="the prompt has 101 tokens; it must have 1 to 100"):
        engine.generate(tokens(engine, 101, 1))
    sequence = engine.steps.new_sequence()
    with pytest.raises(TrigraphError, match="the prompt reaches 101 tokens and the context holds 100"):
        engine.steps.prefill([sequence], [tokens(engine, 101, 1)])
    engine.steps.prefill([sequence], [tokens(engine, 100, 1)])
