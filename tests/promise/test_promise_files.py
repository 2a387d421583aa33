"""One text, one answer, over files: session files and prompt caches that one engine writes and another one reads."""

from pathlib import Path

import numpy as np
import pytest

from support.marks import slow_after
from support.models.packages import Packages
from support.requests.promise import PlainText, sequence_bits
from support.requests.sessions import resume, save
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.state.sequence import Sequence

MODELS = [
    ("trained", "Q8_0", "int8", "f16"),
    ("tiny-moe", "Q4_K_M", "float32", "f32"),
    ("tiny-next", "mixed", "int8", "f16"),
    ("tiny-moe", "Q4_K_M", "int8", "q8_0"),
    ("tiny-streams", "mixed", "int8", "f16"),
]
LENGTH = 150

Model = tuple[str, str, str, str]


def open_engine(packages: Packages, model: Model, threads: int, chunk: int) -> Engine:
    geometry, quant, activations, kv_type = model
    folder = packages(geometry, quant, activations=activations, kv_type=kv_type)
    return load(folder, threads=threads, chunk=chunk, context=200, sequences=4)


def grown(engine: Engine, text: PlainText, random: np.random.Generator, length: int) -> Sequence:
    """A sequence of so many tokens, by prefills, verifies and drafts at random."""
    steps, sequence = engine.steps, engine.steps.new_sequence()
    while sequence.length < length:
        rest = length - sequence.length
        if random.random() < 0.3:
            count = int(random.integers(1, min(rest, 40) + 1))
            steps.prefill([sequence], [text.tokens[sequence.length : sequence.length + count]])
            continue
        count = int(random.integers(1, steps.max_pending + 1))
        new = text.tokens[sequence.length : sequence.length + count]
        if random.random() < 0.5:
            steps.draft([sequence], new[:1])
        steps.verify([sequence], [new])
        steps.keep(sequence, int(random.integers(0, min(rest, len(new)) + 1)))
    return sequence


@pytest.mark.parametrize("model", slow_after(1, MODELS), ids="-".join)
def test_session_files(packages: Packages, model: Model, tmp_path: Path) -> None:
    writer, reader = open_engine(packages, model, 1, 512), open_engine(packages, model, 2, 9)
    text = PlainText(writer, LENGTH, 1)
    random = np.random.default_rng(2)
    for number in range(4):
        length = int(random.integers(1, 100))
        sequence = grown(writer, text, random, length)
        if pending := bool(number % 2):
            writer.steps.verify([sequence], [text.tokens[length : length + 5]])
        save(tmp_path / "session", writer.steps, sequence, model=writer.identity)
        (copy,) = resume(tmp_path / "session", reader.steps, reader.identity)
        assert sequence_bits(reader, copy) == text.bits(length), "what was pending is not part of the file"
        if pending:
            writer.steps.keep(sequence, 2)
        assert sequence_bits(writer, sequence) == text.bits(length + 2 * pending)
        reader.steps.prefill([copy], [text.tokens[copy.length : copy.length + 20]])
        assert sequence_bits(reader, copy) == text.bits(copy.length)
        writer.steps.release(sequence)
        reader.steps.release(copy)


@pytest.mark.parametrize("model", slow_after(1, MODELS), ids="-".join)
def test_prompt_caches(packages: Packages, model: Model, tmp_path: Path) -> None:
    """Prompts of one text, longer and shorter, with completions between: cached ones are those without a cache."""
    engines = [open_engine(packages, model, 1, 512), open_engine(packages, model, 2, 9)]
    text = PlainText(engines[0], LENGTH, 3)
    options = Options(Sampling(temperature=0.9, seed=4), max_tokens=9, ignore_eos=True, draft_tokens=3)
    reused = 0
    for number, length in enumerate((40, 40, 75, 60, 110, 20)):
        engine = engines[number % 2]
        cached = engine.generate(text.tokens[:length], options, tmp_path / "cache")
        plain = engines[0].generate(text.tokens[:length], options)
        cached.run()
        plain.run()
        assert cached.ids == plain.ids
        reused += cached.stats.reused_tokens
    assert reused > 60, "the cache is of no use here"
