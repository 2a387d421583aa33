"""What the prefix cache gives back has the bits of a fresh computation, however it came in and went out."""

from pathlib import Path

import numpy as np
import pytest

from support.marks import slow_after
from support.models.packages import Packages
from support.requests.promise import PlainText, draft_chains, row_bits, sequence_bits
from trigraph.runtime import Engine, load
from trigraph.runtime.cache.disk_tier import DiskTier
from trigraph.runtime.cache.prefix_cache import PrefixCache
from trigraph.runtime.cache.session_file import SessionFile
from trigraph.runtime.execution.prefill_speed import PrefillSpeed
from trigraph.runtime.state.sequence import Sequence

# geometry, quantisation, activations, keys and values
MODELS = [
    ("trained", "Q8_0", "int8", "f16"),
    ("tiny-dense", "mixed", "float32", "f32"),
    ("tiny-moe", "Q4_K_M", "int8", "f16"),
    ("tiny-next", "mixed", "int8", "f32"),
    ("tiny-moe", "Q4_K_M", "int8", "q8_0"),
    ("tiny-streams", "mixed", "int8", "f16"),
]
LENGTHS = [1, 7, 63, 64, 65, 100, 127, 128, 129]  # pages of 64
LENGTH = 140


@pytest.fixture(scope="module", params=slow_after(1, MODELS), ids="-".join)
def engine(request: pytest.FixtureRequest, packages: Packages) -> Engine:
    geometry, quant, activations, kv_type = request.param
    folder = packages(geometry, quant, activations=activations, kv_type=kv_type)
    return load(folder, threads=1, chunk=48, context=220, sequences=4)


@pytest.fixture(scope="module")
def plain(engine: Engine) -> PlainText:
    return PlainText(engine, LENGTH, 1)


def come_to(engine: Engine, plain: PlainText, cache: PrefixCache, length: int, how: str) -> Sequence:
    """A sequence of the text's beginning; checkpoints are kept on the way."""
    steps, tokens = engine.steps, plain.tokens
    sequence = steps.new_sequence()
    if how == "prompt":
        row = steps.prefill([sequence], [tokens[:length]])
        cache.insert(sequence, row)
        return sequence
    if length > 20:
        cache.insert(sequence, steps.prefill([sequence], [tokens[: length - 20]]))
    random = np.random.default_rng(length)
    while sequence.length < length:
        kept = min(int(random.integers(1, 6)), length - sequence.length)
        if how == "drafts":  # which are there to be rejected
            draft_chains(engine, [sequence], [tokens[sequence.length]])
        wrong = [1 + tokens[i] // 2 for i in range(8 - kept)]
        steps.verify([sequence], [[*tokens[sequence.length : sequence.length + kept], *wrong]])
        if how == "pending":
            cache.insert(sequence, None)
        steps.keep(sequence, kept)
    if how == "drafts":
        draft_chains(engine, [sequence], [1 + tokens[length - 1] // 2])
    if how == "pending":
        steps.verify([sequence], [tokens[length : length + 3]])
    cache.insert(sequence, None)
    return sequence


def check(engine: Engine, plain: PlainText, sequence: Sequence) -> None:
    length = sequence.length
    found, wanted = sequence_bits(engine, sequence), plain.bits(length)
    assert [name for name in wanted if found[name] != wanted[name]] == [], f"after {length} tokens"
    engine.steps.release(sequence)


@pytest.mark.parametrize("how", ["prompt", "accepted", "drafts", "pending"])
def test_cached_is_uncached(engine: Engine, plain: PlainText, how: str) -> None:
    steps = engine.steps
    for length in LENGTHS:
        cache = PrefixCache(steps)
        sequence = come_to(engine, plain, cache, length, how)
        first = cache.find([*plain.tokens[:length], 1])
        assert (first.sequence.length, first.row) == (length, None)
        # The sequence goes another way, on the pages and the slot that it had.
        steps.prefill([sequence], [[2] * 70])
        draft_chains(engine, [sequence], [3])
        check(engine, plain, first.sequence)
        check(engine, plain, cache.find([*plain.tokens[:length], 2]).sequence)
        if how == "prompt":
            same = cache.find(plain.tokens[:length])
            assert same.row is not None
            assert row_bits(same.row) == [plain.rows[length - 1]]
            check(engine, plain, same.sequence)
        check(engine, plain, cache.find(plain.tokens[: length + 1]).sequence)
        steps.release(sequence)
        cache.clear()
    assert (steps.state.slots.free, steps.state.pages.free) == (steps.state.slots.size, steps.state.pages.size)


def test_prompts_that_go_on_from_each_other(engine: Engine, plain: PlainText) -> None:
    """Each starts at the longest checkpoint before it, in any order; rows and states are those of the whole prompt."""
    steps, cache = engine.steps, PrefixCache(engine.steps)
    for length in np.random.default_rng(1).permutation(range(1, LENGTH)).tolist()[:25]:
        found = cache.find(plain.tokens[:length])
        row = found.row
        for stop in (found.parted, length):
            if stop is not None and found.sequence.length < stop:
                cache.make_room(*steps.state.room([found.sequence], [stop]))
                row = steps.prefill([found.sequence], [plain.tokens[found.sequence.length : stop]])
                assert row_bits(row) == [plain.rows[stop - 1]]
                cache.insert(found.sequence, row)
        assert row is not None
        assert row_bits(row) == [plain.rows[length - 1]]
        cache.make_room(2, 2)
        check(engine, plain, found.sequence)
    cache.clear()


def test_files_keep_the_bits(engine: Engine, plain: PlainText, tmp_path: Path) -> None:
    cache = PrefixCache(engine.steps)
    for length in (63, 65, 100, 129):
        engine.steps.release(come_to(engine, plain, cache, length, "drafts"))
    cache.save(tmp_path / "session", engine.identity, plain.tokens)
    cache.clear()
    saved = SessionFile(tmp_path / "session", engine.identity, engine.steps)
    cache.load(saved)
    assert len(cache) == 4
    for length in saved.lengths:
        check(engine, plain, cache.find(plain.tokens[: length + 1]).sequence)
    cache.clear()


def test_the_disk_keeps_the_bits(engine: Engine, plain: PlainText, tmp_path: Path) -> None:
    speed = PrefillSpeed()
    speed.observe(1, 10.0)
    for turn, length in enumerate((1, 63, 64, 65, 129)):
        disk = DiskTier(tmp_path / str(turn), None, engine.identity, engine.steps, speed)
        cache = PrefixCache(engine.steps, disk)
        engine.steps.release(come_to(engine, plain, cache, length, "prompt" if turn % 2 else "drafts"))
        disk.finish()
        cache.clear()
        found = cache.find([*plain.tokens[:length], 1])
        assert (found.sequence.length, disk.read) == (length, 1)
        check(engine, plain, found.sequence)
        cache.clear()
