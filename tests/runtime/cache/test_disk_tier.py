"""Checkpoints on disk: found again by other programs, and never trusted blindly."""

import dataclasses
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from support.fakes.model import FakeModel
from support.fakes.steps import make, text
from support.requests.cached_prompts import compute
from support.requests.disk_program import Program, files, lengths
from support.requests.sessions import MODEL
from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.prefix_cache import PrefixCache


def test_a_damaged_file_that_others_were_evicted_for(tmp_path: Path) -> None:
    """What was found before is looked for again."""
    model = make()
    Program(tmp_path, model)(text(100))
    (path,) = files(tmp_path)
    data = bytearray(path.read_bytes())
    data[8 + int.from_bytes(data[:8], "little") + 8 * 100 + 10] ^= 1  # behind the tokens: of a page
    path.write_bytes(data)
    steps = model.steps(128, sequences=1, slots=2)
    program = Program(tmp_path, model)
    program.steps = program.disk._steps = steps
    program.cache = PrefixCache(steps, program.disk)
    cache, disk = program.cache, program.disk
    cache._disk = None
    compute(steps, cache, text(60))
    compute(steps, cache, text(30, 2))
    cache._disk = disk
    found = cache.find(text(110))
    assert (found.sequence.length, len(cache)) == (60, 1)
    assert not files(tmp_path)
    steps.release(found.sequence)
    program.close()


def test_checkpoints_outlive_the_program(tmp_path: Path) -> None:
    model = make()
    assert Program(tmp_path, model)(text(60), text(100)) == [0, 60]
    other = Program(tmp_path, model)
    assert other(text(101), text(60)) == [100, 60]
    assert other.disk.read == 2
    other.close()


def test_a_program_sees_what_others_write(tmp_path: Path) -> None:
    model = make()
    one, other = Program(tmp_path, model), Program(tmp_path, model)
    assert [one(text(50, 1)), other(text(50, 1)), other(text(70, 2)), one(text(70, 2))] == [[0], [50], [0], [70]]
    assert lengths(tmp_path) == [50, 70]


def test_what_saves_little_is_not_written(tmp_path: Path) -> None:
    """At least a second: 32 tokens; and of what is there already, nothing twice."""
    program = Program(tmp_path, make())
    program(text(20), text(40), text(60), text(80))
    assert lengths(tmp_path) == [40, 80]
    program.cache.clear()
    program(text(40), text(81))
    assert lengths(tmp_path) == [40, 80]


def test_reading_must_pay(tmp_path: Path) -> None:
    """Opening a file takes 5 ms."""
    model = make()
    Program(tmp_path, model)(text(100))
    assert Program(tmp_path, model, rate=30000)(text(101)) == [0]
    assert Program(tmp_path, model, rate=10000)(text(101)) == [100]


def test_the_whole_prompt_needs_the_row_of_its_end(tmp_path: Path) -> None:
    model = make()
    program = Program(tmp_path, model)
    sequence = program.cache.find(text(40)).sequence
    program.cache.insert(sequence, program.steps.prefill([sequence], [text(40)]))
    program.steps.prefill([sequence], [text(90)[40:]])
    program.cache.insert(sequence, None)
    program.disk.finish()
    assert Program(tmp_path, model)(text(90), text(91)) == [40, 90]


def test_the_least_recently_used_make_room(tmp_path: Path) -> None:
    model = make()
    Program(tmp_path / "one", model)(text(64))
    (path,) = files(tmp_path / "one")
    size = path.stat().st_size
    folder = tmp_path / "some"
    for seed in (1, 2, 3):
        Program(folder, model, 3 * size + 100)(text(64, seed))
    assert Program(folder, model, 3 * size + 100)(text(65, 1)) == [64]
    Program(folder, model, 3 * size + 100)(text(64, 4))
    program = Program(folder, model, 3 * size + 100)
    assert [program.cache.find(text(65, seed)).sequence.length for seed in (1, 2, 3, 4)] == [64, 0, 64, 64]
    assert sum(path.stat().st_size for path in files(folder)) <= 3 * size + 100
    small = Program(folder, model, 100)
    compute(small.steps, small.cache, text(100, 5))
    small.disk.finish()
    assert "a checkpoint of 100 tokens is kept in memory alone: it takes" in str(small.disk.problem)
    assert len(files(folder)) == 3, "what exceeds the budget removes nothing"


def test_other_models_files_are_left_alone(tmp_path: Path) -> None:
    model = make()
    Program(tmp_path, model)(text(50))
    other = Program(tmp_path, model, identity=dataclasses.replace(MODEL, kv_type="f32"))
    assert other(text(51)) == [0]
    plain = FakeModel(model.vocab, model.next_logits)  # does not draft
    plain._histories, plain._numbers = model._histories, model._numbers
    assert Program(tmp_path, plain)(text(52)) == [0]
    assert lengths(tmp_path) == [50, 51, 52]


def test_strange_files(tmp_path: Path) -> None:
    """Of other names, of another text, of nothing; a folder: none is used, and nothing breaks."""
    model = make()
    Program(tmp_path, model)(text(50, 1), text(60, 2), text(70, 3))
    one, two, three = files(tmp_path)
    one.rename(one.with_name(two.name))
    three.write_bytes(b"")
    for name in ("thesis.txt", "12-xyz.session", "50-" + "0" * 32 + ".session"):
        (three.parent / name).write_text("Years of work.")
    folder = one.with_name(one.name)
    folder.mkdir()
    program = Program(tmp_path, model)
    assert program(text(51, 1), text(61, 2), text(71, 3)) == [0, 0, 0]
    assert not two.exists()
    assert not three.exists()
    assert (three.parent / "thesis.txt").read_text() == "Years of work."
    program.close()


def test_any_damage_costs_only_the_file(tmp_path: Path) -> None:
    model = make()
    Program(tmp_path, model)(text(50))
    (path,) = files(tmp_path)
    content = path.read_bytes()
    random = np.random.default_rng(1)
    program = Program(tmp_path, model)
    for _ in range(60):
        damaged = bytearray(content)
        damaged[int(random.integers(len(content)))] ^= 1 << int(random.integers(8))
        cut = int(random.integers(1, len(content))) if random.integers(2) else len(content)
        path.write_bytes(damaged[:cut])
        program.disk._folder._scanned = (-1, {})
        found = program.cache.find(text(51))
        # One space of the header for another changes nothing.
        assert found.sequence.length == 0 or damaged[3000:] == content[3000:]
        assert path.exists() == bool(found.sequence.length)
        program.steps.release(found.sequence)
        program.close()


def test_a_disk_that_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    resource = pytest.importorskip("resource")
    program = Program(tmp_path, make())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        compute(program.steps, program.cache, text(50))
        program.disk.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "cannot be written" in str(program.disk.problem)
    assert files(tmp_path) == []
    compute(program.steps, program.cache, text(100))
    program.disk.finish()
    assert files(tmp_path) == [], "one failure is enough for a while"
    (said,) = caplog.messages
    assert "cannot be written" in said and said.endswith("checkpoints are kept in memory alone")
    program.disk._resting_until = 0
    compute(program.steps, program.cache, text(120))
    program.disk.finish()
    assert len(files(tmp_path)) == 1 and program.disk.problem is None


class Usage(NamedTuple):
    """What a disk has, in bytes."""

    free: int


def test_a_disk_that_others_fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Own files make room while that helps, whatever the budget is."""
    program = Program(tmp_path, make(), budget=1 << 30)
    program(text(50, 1), text(50, 2), text(50, 3))
    before = files(tmp_path)
    size = max(path.stat().st_size for path in before)

    def usage(path: object) -> Usage:  # of a disk with room for three such files
        return Usage(max(0, size * 3 - sum(path.stat().st_size for path in files(tmp_path))))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    program(text(50, 4))
    kept = files(tmp_path)
    assert len(kept) == 3
    assert set(kept) - set(before), "the new one is there"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(-100 * size))
    program(text(50, 5))
    assert set(kept) <= set(files(tmp_path)), "nothing is removed in vain"


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrigraphError, match="choose another cache folder"):
        Program(tmp_path / "file", make())
    with pytest.raises(TrigraphError, match="cache_size is 0"):
        Program(tmp_path, make(), budget=0)
