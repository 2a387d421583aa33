"""Files of a disk tier that go on from each other, and are written while the engine goes on."""

from pathlib import Path

import numpy as np
import pytest

from support.fakes.model import FakeGraph
from support.fakes.steps import free, make, text
from support.requests.cached_prompts import compute
from support.requests.disk_program import Program, files, lengths
from support.requests.sessions import MODEL
from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache import disk_tier, kv_pages, tensor_file
from trigraph.runtime.cache.session_file import SessionFile
from trigraph.runtime.cache.tensor_file import TensorFile


def conversation(turns: int) -> list[list[int]]:
    """Prompts that go on from each other: each turn is worth a file."""
    return [text(50 * turn) for turn in range(1, turns + 1)]


def test_files_hold_what_their_parents_have_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation takes the disk what it has, and comes back from all of its files, in pieces of any size."""
    monkeypatch.setattr(kv_pages, "PIECE", 100)
    monkeypatch.setattr(tensor_file, "PIECE", 90)
    model = make()
    assert Program(tmp_path, model, context=1000)(*conversation(18)) == [0, *range(50, 900, 50)]
    assert len(files(tmp_path)) == 18
    pages = sum(TensorFile(path, "a file").rows("pages.kv.3.key") for path in files(tmp_path))
    assert pages <= 900 // 4 + 2 * 18, "each page once, but for those that were not full"
    other = Program(tmp_path, model, context=1000)
    assert other(text(901)) == [900]
    assert other.disk.read == 1
    other.close()


def test_a_hundred_thousand_tokens_outlive_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than may wait to be written at a time, in two turns, of which each is written once."""
    monkeypatch.setattr(FakeGraph, "_run", lambda graph, inputs, outputs: [a.fill(0) for a in outputs.values()])
    monkeypatch.setattr(disk_tier, "_MAX_WAITING", 1000)
    model = make()
    program = Program(tmp_path, model, context=100_004)
    assert [*program(text(60_000)), *program(text(100_000))] == [0, 60_000]
    assert lengths(tmp_path) == [60_000, 100_000]
    other = Program(tmp_path, model, context=100_004)
    assert other(text(100_001)) == [100_000]
    pages = [TensorFile(path, "a file").rows("pages.kv.3.key") for path in files(tmp_path)]
    assert sorted(pages) == [10_000, 15_000], "of 100,000 tokens"
    other.close()


def test_what_is_in_memory_is_not_read_again(tmp_path: Path) -> None:
    """Nor is it there twice: 200 tokens of 240 are shared."""
    model = make()
    program = Program(tmp_path, model, context=400)
    program(*conversation(5))
    other = Program(tmp_path, model, context=400)
    other(text(200))
    for path in files(tmp_path):
        if path.name.startswith(("50-", "100-", "150-")):
            path.write_bytes(path.read_bytes()[:-1])  # would be noticed
    before = free(other.steps)[1]
    assert other(text(251)) == [250]
    assert before - free(other.steps)[1] == 63 - 50 + 1, "those behind 200 tokens, and the prompt's own"
    other.close()


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize(("length", "found"), [(50, [0, 0, 70]), (100, [50, 110, 70]), (150, [100, 110, 70])])
def test_a_damaged_parent(tmp_path: Path, length: int, found: list[int], gone: bool) -> None:
    """Those that go on from it are of no use, and none stays."""
    model = make()
    Program(tmp_path, model)(*conversation(3), [*text(50), *text(60, 2)], text(70, 3))
    assert lengths(tmp_path) == [50, 70, 100, 110, 150]
    damaged = next(path for path in files(tmp_path) if path.name.startswith(f"{length}-"))
    data = bytearray(damaged.read_bytes())
    data[8 + int.from_bytes(data[:8], "little") + 8 * length + 10] ^= 1  # behind the tokens: of a page
    damaged.unlink()
    if not gone:
        damaged.write_bytes(data)
    for prompt, expected in zip(([*text(150), 1], [*text(50), *text(60, 2), 1], text(71, 3)), found, strict=True):
        program = Program(tmp_path, model)
        sequence = program.cache.find(prompt).sequence
        assert sequence.length == expected
        program.steps.release(sequence)
        program.close()
    program.disk._folder.make_room(0, ())
    assert not any(orphans(tmp_path)) and damaged not in files(tmp_path)


def orphans(folder: Path) -> list[Path]:
    """Files whose parents are gone."""
    keys = {tuple(path.stem.split("-")[:2]) for path in files(folder)}
    return [path for path in files(folder) if (parent := tuple(path.stem.split("-")[2:])) and parent not in keys]


def test_parents_stay_as_long_as_their_children(tmp_path: Path) -> None:
    """The budget takes conversations from their ends, that first which was used first."""
    model = make()
    Program(tmp_path, model)(*conversation(3))
    first = {path.name for path in files(tmp_path)}
    for seed in (1, 2):
        Program(tmp_path, model)(text(50, seed), text(100, seed))
    assert Program(tmp_path, model)(text(151)) == [150]
    total = sum(path.stat().st_size for path in files(tmp_path))
    for number, left in enumerate((7, 7, 7, 7), 3):
        Program(tmp_path, model, total - 100)(text(50, number))
        assert first <= {path.name for path in files(tmp_path)}
        assert orphans(tmp_path) == [] and len(files(tmp_path)) == left
    Program(tmp_path, model, total - 100)(text(50, 9))
    assert lengths(tmp_path) == [50] * 6 + [100]
    assert orphans(tmp_path) == []


def test_a_file_that_goes_on_from_another_is_no_session_file(tmp_path: Path) -> None:
    model = make()
    program = Program(tmp_path, model)
    program(*conversation(2))
    longer = max(files(tmp_path), key=lambda path: path.name.count("-"))
    with pytest.raises(TrigraphError, match="is a part of a conversation in a cache folder"):
        SessionFile(longer, MODEL, program.steps)


def test_offering_copies_nothing_and_takes_no_room(tmp_path: Path) -> None:
    """What is to be written is read when the engine does not hold the lock, and comes back when it needs the room."""
    model = make()
    program = Program(tmp_path, model)
    steps, cache, disk = program.steps, program.cache, program.disk
    with steps.lock:
        compute(steps, cache, text(100))
        before = free(steps)
        (offered,) = disk._waiting.values()
        kept = next(iter(cache._tree)).value
        assert kept is not None and offered.sequence.pages[:25].tolist() == kept.sequence.pages[:25].tolist()
        assert before == (steps.state.slots.size - 1, steps.state.pages.size - 25)
        assert cache.make_room(steps.state.slots.size, steps.state.pages.size)
        assert free(steps) == (steps.state.slots.size, steps.state.pages.size)
    disk.finish()
    assert files(tmp_path) == []
    assert disk.problem == "a checkpoint of 100 tokens is kept in memory alone: its memory was needed before"
    assert program(text(100)) == [0]
    assert lengths(tmp_path) == [100]
    program.close()


def test_a_checkpoint_whose_memory_is_needed_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kv_pages, "PIECE", 16)
    program = Program(tmp_path, make())
    steps, stack, pieces = program.steps, np.stack, []

    def stacked(rows: list[np.ndarray]) -> np.ndarray:
        pieces.append(len(rows))
        if len(pieces) == 5:
            assert program.cache.make_room(1, steps.state.pages.size)
        return stack(rows)

    monkeypatch.setattr(np, "stack", stacked)
    with steps.lock:
        compute(steps, program.cache, text(100))
    program.disk.finish()
    assert len(pieces) == 5 and files(tmp_path) == []
    assert len(caplog.messages) == 1 and "its memory was needed" in caplog.messages[0]
    program.close()


def test_a_disk_that_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One checkpoint is written whatever it takes, and as many behind it as fit; the next turn makes up for it."""
    monkeypatch.setattr(disk_tier, "_MAX_WAITING", 1000)
    program = Program(tmp_path, make())
    with program.steps.lock:
        for seed in (1, 2):
            compute(program.steps, program.cache, text(100, seed))
        assert "the disk is slower than they come" in str(program.disk.problem)
    program.disk.finish()
    assert program.disk.problem is None and len(files(tmp_path)) == 1
    assert program(text(120, 2)) == [100]
    assert lengths(tmp_path) == [100, 120]
