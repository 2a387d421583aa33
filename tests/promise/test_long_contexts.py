"""One text, one answer, far behind the places where contexts of other sizes end: beyond 65,536 tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.models.packages import Packages
from support.operators.run import LIBRARY
from support.requests.promise import row_bits, sequence_bits
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.state.sequence import Sequence

PREFILLED, BEGUN, LENGTH = 1280, 64_000, 66_100  # the first two in whole pages


def begun_with(steps: Steps, tokens: list[int]) -> Sequence:
    """A sequence whose keys and values are those of its first PREFILLED tokens, again and again.

    To prefill them all takes minutes, and a step makes no difference between these values and others.
    """
    sequence = steps.new_sequence()
    hidden = steps.prefill([sequence], [tokens[:PREFILLED]]).hidden[0]
    filled = sequence.page_count
    assert filled * steps.state.limits.page_size == PREFILLED
    steps.state.reserve([sequence], [len(tokens)])
    numbers = sequence.pages[: sequence.page_count]
    for buffer in steps.state.paged.values():
        rows = np.stack([buffer.current[page] for page in numbers[:filled].tolist()])
        buffer.current[numbers[filled:]] = np.resize(rows, (len(numbers) - filled, *rows.shape[1:]))
    sequence.prefilled(tokens[PREFILLED:], hidden)
    return sequence


@pytest.mark.slow
def test_pieces_of_a_text_beyond_65536_tokens(packages: Packages) -> None:
    """What is cut in one way, and in others: rows, state, keys and values are the same bits."""
    folder = packages("trained", "Q8_0", rope_scaling="yarn:33")
    with load(folder, threads=1, context=LENGTH + 8, sequences=3, device=LIBRARY) as engine, engine.steps.lock:
        steps = engine.steps
        text = np.random.default_rng(5).integers(3, steps.vocab, LENGTH).tolist()
        begun = begun_with(steps, text[:BEGUN])
        other = steps.fork(begun)
        row = row_bits(steps.prefill([begun], [text[BEGUN:]]))
        dice = np.random.default_rng(6)
        while other.length < LENGTH:
            size = min(int(dice.choice([1, 7, 8, 500, 513])), LENGTH - other.length)
            piece = text[other.length : other.length + size]
            if size > steps.max_pending:
                found = row_bits(steps.prefill([other], [piece]))
            else:
                found = row_bits(steps.verify([other], [piece]))[-1:]
                steps.keep(other, size)
        assert found == row
        assert sequence_bits(engine, other) == sequence_bits(engine, begun)


@pytest.mark.slow
def test_a_text_beyond_65536_tokens_over_a_restart(packages: Packages, tmp_path: Path) -> None:
    """Two files in a cache folder, of which the second one goes on from the first."""
    folder, kept = packages("trained", "Q8_0", rope_scaling="yarn:33"), tmp_path / "cache"
    text = np.random.default_rng(5).integers(3, 200, LENGTH).tolist()

    def engine() -> Engine:
        return load(folder, threads=1, context=LENGTH + 8, sequences=3, device=LIBRARY, cache_dir=kept)

    with engine() as first:
        disk, steps = first.model.disk, first.steps
        assert disk is not None
        with steps.lock:
            first.model.prefill_speed.observe(1, 0.01)  # a file pays
            begun = begun_with(steps, text[:BEGUN])
            first.cache.insert(begun, None)
        disk.finish()
        with steps.lock:
            row = row_bits(steps.prefill([begun], [text[BEGUN:]]))
            first.cache.insert(begun, None)
        disk.finish()
        assert disk.problem is None and disk.written == 2
        with steps.lock:
            bits = sequence_bits(first, begun)
    with engine() as other, other.steps.lock:
        found = other.cache.find([*text, 1]).sequence
        assert found.length == LENGTH
        assert sequence_bits(other, found) == bits
        begun = other.cache.find([*text[:BEGUN], 1]).sequence
        assert begun.length == BEGUN
        assert row_bits(other.steps.prefill([begun], [text[BEGUN:]])) == row


@pytest.mark.slow
def test_requests_beyond_65536_tokens(packages: Packages) -> None:
    """Alone and without drafts; then with drafts, beside others, from a shorter and a longer beginning."""
    folder = packages("trained", "Q8_0", rope_scaling="yarn:33")
    with load(folder, threads=1, context=LENGTH + 64, sequences=4, device=LIBRARY) as engine:
        text = np.random.default_rng(5).integers(3, engine.steps.vocab, LENGTH).tolist()
        with engine.steps.lock:
            begun = begun_with(engine.steps, text[:BEGUN])

        def said(prompts: list[list[int]], drafts: int) -> list[list[int]]:
            with engine.steps.lock:
                engine.cache.clear()
                engine.cache.insert(begun, None)
            options = Options(Sampling(temperature=0.9, seed=3), max_tokens=24, ignore_eos=True, speculate=bool(drafts))
            requests = [engine.submit(prompt, options) for prompt in prompts]
            for request in requests:
                request.result()
            assert all(request.reused >= BEGUN for request in requests)
            return [request.ids for request in requests]

        alone = said([text], 0)
        beside = said([text, [*text[: BEGUN + 300], 7], [*text, 9]], 3)
        assert beside[:1] == alone
        assert said([[*text, 9]], 0) == beside[2:]
