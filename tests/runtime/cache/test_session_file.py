"""Session files: their format, what is refused, and that a file stays whole."""

import dataclasses
import json
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from support.fakes.model import FakeModel, chaotic, mostly_right
from support.interrupts import Interrupts
from support.requests.sessions import MODEL, resume, save
from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.checkpoint import Checkpoint
from trigraph.runtime.cache.session_file import SessionFile
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.state.sequence import Sequence

VOCAB = 11


def fake(context: int = 64, *, draft: bool = True, vocab: int = VOCAB) -> tuple[FakeModel, Steps]:
    logits = chaotic(vocab)
    model = FakeModel(vocab, logits, mostly_right(logits) if draft else None)
    return model, model.steps(context)


def fill(model: FakeModel, steps: Steps) -> tuple[Sequence, Sequence]:
    """A sequence of 13 tokens and four pending ones, which no file takes, and a fork of its first 9."""
    sequence = steps.new_sequence()
    steps.prefill([sequence], [[1, 2, 3, 4, 5, 6, 7, 8, 9]])
    shorter = steps.fork(sequence)
    steps.draft([sequence], [10])
    steps.verify([sequence], [[10, 0, 1]])
    steps.keep(sequence, 3)
    steps.prefill([sequence], [[5]])
    steps.verify([sequence], [[2, 3, 4, 5]])
    return shorter, sequence


def test_checkpoints_of_one_sequence_share_its_pages(tmp_path: Path) -> None:
    """The fake model checks every token of KV pages, MTP entries and states that a step reads."""
    model, steps = fake()
    shorter, sequence = fill(model, steps)
    save(tmp_path / "session", steps, shorter, sequence)
    for old in (shorter, sequence):
        steps.release(old)
    before = steps.state.pages.free
    first, second = resume(tmp_path / "session", steps)
    # Pages of 4: two are shared, the third is filled twice, the fourth is the longer one's.
    assert before - steps.state.pages.free == 2 + 2 + 1
    for copy in (first, second):
        tokens = list(copy.tokens)
        steps.draft([copy], [7])
        result = steps.verify([copy], [[7, 8]])
        np.testing.assert_array_equal(result.logits[1], model.next_logits((*tokens, 7, 8)))
    for copy in (first, second):
        steps.release(copy)
    assert steps.state.pages.free == before
    assert steps.state.slots.free == steps.state.slots.size


def test_the_format_is_that_of_safetensors(tmp_path: Path) -> None:
    model, steps = fake()
    _, sequence = fill(model, steps)
    save(tmp_path / "session", steps, sequence)
    tensors = load_file(tmp_path / "session")
    assert tensors["tokens"].tolist() == sequence.tokens
    assert tensors["pages.kv.3.key"].reshape(-1)[:13].tolist() == sequence.tokens
    assert not tensors["pages.kv.3.key"].reshape(-1)[13:].any(), "what another sequence left is in the file"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": "another"}, "'a model'.*'another'"),
        ({"weights": "ffff" * 16}, "weights 12345678.*weights ffffffff"),
        ({"kv_type": "f32"}, "KV f16.*KV f32"),
        ({"activations": "float32"}, "activations int8.*activations float32"),
        ({"contract_version": 2}, "contract 1.*contract 2"),
        ({"mtp_head": False}, "with MTP head.*without MTP head"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_model_is_refused(change: dict[str, object], named: str, tmp_path: Path) -> None:
    model, steps = fake()
    save(tmp_path / "session", steps, fill(model, steps)[1])
    with pytest.raises(TrigraphError, match=named):
        SessionFile(tmp_path / "session", dataclasses.replace(MODEL, **change), steps)  # type: ignore[arg-type]


def test_a_smaller_context_is_refused(tmp_path: Path) -> None:
    model, steps = fake()
    save(tmp_path / "session", steps, fill(model, steps)[1])
    with pytest.raises(TrigraphError, match="the session has 13 tokens and the context holds 12"):
        SessionFile(tmp_path / "session", MODEL, fake(12)[1])


def rewrite(path: Path, metadata: dict[str, str] | None = None, **sizes: int) -> None:
    """Changes metadata of a session file, or the length that its header states for a tensor."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    changed = header["__metadata__"] | (metadata or {})
    del changed["crc32"]
    header["__metadata__"] = changed | {"crc32": str(zlib.crc32(json.dumps(changed, sort_keys=True).encode()))}
    for name, count in sizes.items():
        header[name]["shape"] = [count]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])


@pytest.mark.parametrize(
    "metadata",
    [
        {"format": "pt"},
        {"version": "2"},
        {"model": "[1]"},
        {"model": '{"name": 5}'},
        {"model": "{"},
        {"checkpoints": "3"},
        {"checkpoints": "[3]"},
        {"checkpoints": "[{}]"},
        {"checkpoints": "[]"},
        {"checkpoints": '[{"length": 13, "to_commit": 9, "mtp_len": 0}]'},
        {"checkpoints": '[{"length": 99, "to_commit": 0, "mtp_len": 0}]'},
        {"checkpoints": '[{"length": 13.0, "to_commit": 0, "mtp_len": 0}]'},
        {"checkpoints": '[{"length": 13, "to_commit": 0, "mtp_len": 14}]'},
        {"checkpoints": "[" * 100000},
        {"messages": '["hello"]'},
        {"messages": '[{"role": "user"}]'},
    ],
    ids=lambda value: str(value)[:70],
)
def test_contradictions_are_refused(metadata: dict[str, str], tmp_path: Path) -> None:
    model, steps = fake()
    save(tmp_path / "session", steps, fill(model, steps)[1])
    rewrite(tmp_path / "session", metadata)
    with pytest.raises(TrigraphError, match="is not a session file, or damaged"):
        SessionFile(tmp_path / "session", MODEL, steps)


def test_any_damage_is_noticed(tmp_path: Path) -> None:
    """Every file that is cut short, and every bit that is flipped, is refused, and no state is lost or half filled."""
    path = tmp_path / "session"
    model, steps = fake()
    save(path, steps, fill(model, steps)[1])
    content = path.read_bytes()
    free = steps.state.slots.free, steps.state.pages.free
    random = np.random.default_rng(2)
    cuts = [content[: int(n)] for n in (0, 5, 8, 9, *random.integers(10, len(content), 60))]
    flips = []
    for position in random.integers(0, len(content), 200):
        damaged = bytearray(content)
        damaged[position] ^= 1 << int(random.integers(8))
        flips.append(bytes(damaged))
    for number, damaged_content in enumerate([*cuts, *flips, content + b"\0", b"\xff" * 100]):
        path.write_bytes(damaged_content)
        try:
            (copy,) = resume(path, steps)
        except TrigraphError:
            assert (steps.state.slots.free, steps.state.pages.free) == free, number
            continue
        # One space of the header for another white one changes nothing.
        steps.release(copy)
        assert number >= len(cuts)
        header = int.from_bytes(content[:8], "little")
        assert damaged_content[8 + header :] == content[8 + header :], number
        assert json.loads(damaged_content[8 : 8 + header]) == json.loads(content[8 : 8 + header])


def test_a_length_that_the_file_does_not_have(tmp_path: Path) -> None:
    model, steps = fake()
    save(tmp_path / "session", steps, fill(model, steps)[1])
    rewrite(tmp_path / "session", tokens=1 << 60)
    with pytest.raises(TrigraphError, match="is not a session file, or damaged"):
        SessionFile(tmp_path / "session", MODEL, steps)


def test_what_is_not_a_session_file_is_left_alone(tmp_path: Path) -> None:
    model, steps = fake()
    _, sequence = fill(model, steps)
    path = tmp_path / "thesis.txt"
    path.write_text("Years of work.")
    for target in (path, tmp_path):
        with pytest.raises(TrigraphError):
            save(target, steps, sequence)
    with pytest.raises(TrigraphError, match="cannot be written"):
        save(tmp_path / "none" / "session", steps, sequence)
    assert path.read_text() == "Years of work."
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name == "nt", reason="no limit of file size there")
def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    import resource

    model, steps = fake()
    shorter, sequence = fill(model, steps)
    save(tmp_path / "session", steps, shorter)
    before = (tmp_path / "session").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with pytest.raises(TrigraphError, match="cannot be written"):
            save(tmp_path / "session", steps, sequence)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "session").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(os.name == "nt", reason="no timer signals there")
def test_an_interrupt_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    _, steps = fake(context=50000)
    sequence = steps.new_sequence()
    steps.prefill([sequence], [[1, 2, 3]])
    steps.state.reserve([sequence], [40000])
    save(tmp_path / "session", steps, sequence)
    before = (tmp_path / "session").read_bytes()
    sequence.tokens += [4] * 30000
    after: bytes | None = None
    random, interrupted = np.random.default_rng(3), 0
    for _ in range(30):
        try:
            with Interrupts(float(random.uniform(1e-4, 0.1))):
                save(tmp_path / "session", steps, sequence)
        except KeyboardInterrupt:
            interrupted += 1
        content = (tmp_path / "session").read_bytes()
        after = content if content != before and after is None else after
        assert content in (before, after)
        assert len(list(tmp_path.iterdir())) == 1
    assert interrupted


def test_a_failed_step_leaves_nothing_to_save() -> None:
    model, steps = fake()
    _, sequence = fill(model, steps)
    model.fail = True
    with pytest.raises(RuntimeError):
        steps.verify([sequence], [[1]])
    for empty in (sequence, steps.new_sequence()):
        with pytest.raises(TrigraphError, match="no state to save"):
            Checkpoint.of(steps.state, empty)
