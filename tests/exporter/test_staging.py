"""Files and folders appear whole or not at all, whoever is killed and however many write at once."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from unittest.mock import patch

import pytest

from trigraph.models import staging
from trigraph.models.staging import check_writable, staged_file, staged_folder, sweep

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="locks and signals are POSIX")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


_KILLED = """
import os, signal, sys, time
from pathlib import Path
from trigraph.models.staging import staged_file, staged_folder
kind, target, end = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
with staged_file(target) if kind == "file" else staged_folder(target, replace=True) as stage:
    (stage if kind == "file" else stage / "large").write_bytes(bytes(100))
    print("writing", flush=True)
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.readline()
"""


def writer(kind: str, target: Path, end: str) -> subprocess.Popen[str]:
    """A process that has begun to write `target`, and is killed, or waits for a line."""
    command = [sys.executable, "-c", _KILLED, kind, str(target), end]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    return process


def write(kind: str, target: Path, content: str = "new", *, replace: bool = True) -> None:
    with staged_file(target) if kind == "file" else staged_folder(target, replace=replace) as stage:
        (stage if kind == "file" else stage / "content").write_text(content)


def read(kind: str, target: Path) -> str:
    return (target if kind == "file" else target / "content").read_text()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_writer_left_is_swept(kind: str, tmp_path: Path) -> None:
    """By the next writer of the same target; hidden files of others stay."""
    target, others = tmp_path / "target", {".target.partial-mine", ".other.partial-0123456789ab", ".targets.old-1"}
    for name in others:
        (tmp_path / name).touch()
    for _ in range(2):
        with writer(kind, target, "kill") as process:
            assert process.wait() == -signal.SIGKILL
    assert len(names(tmp_path)) == len(others) + 1
    write(kind, target)
    assert names(tmp_path) == {"target", *others}


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_living_writer_is_left_alone(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with writer(kind, target, "wait") as process:
        sweep(target)
        write(kind, target)
        assert len(names(tmp_path)) == 2
        process.communicate("\n")
    assert process.returncode == 0
    assert names(tmp_path) == {"target"}
    assert (target if kind == "file" else target / "large").read_bytes() == bytes(100)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_nothing_stays_of_a_failure(kind: str, tmp_path: Path) -> None:
    write(kind, tmp_path / "target", "old")
    with pytest.raises(ZeroDivisionError), staged_folder(tmp_path / "new/deep/folder", replace=True):
        raise ZeroDivisionError
    with (
        pytest.raises(ZeroDivisionError),
        staged_file(tmp_path / "target") if kind == "file" else staged_folder(tmp_path / "target", replace=True),
    ):
        raise ZeroDivisionError
    assert names(tmp_path) == {"target"}
    assert read(kind, tmp_path / "target") == "old"


def test_a_folder_that_would_be_lost(tmp_path: Path) -> None:
    write("folder", tmp_path / "target", "old", replace=False)
    with pytest.raises(FileExistsError):
        write("folder", tmp_path / "target", "new", replace=False)
    assert names(tmp_path) == {"target"}
    assert read("folder", tmp_path / "target") == "old"
    (tmp_path / "empty").mkdir()
    write("folder", tmp_path / "empty", "new", replace=False)
    assert read("folder", tmp_path / "empty") == "new"


@pytest.fixture(params=["exchange", "two renames"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """How a folder is replaced: in one step where the file system can, or in two."""
    if request.param == "exchange":
        yield "exchange"
        return
    with patch.object(staging, "_exchange", lambda one, other: False):
        yield "two renames"


def test_a_folder_is_replaced(way: str, tmp_path: Path) -> None:
    write("folder", tmp_path / "target", "old")
    write("folder", tmp_path / "target", "new")
    assert names(tmp_path) == {"target"}
    assert read("folder", tmp_path / "target") == "new"


def test_a_folder_is_never_missing_while_it_is_replaced(tmp_path: Path) -> None:
    if not hasattr(ctypes.CDLL(None), "renameat2"):
        pytest.skip("names cannot be exchanged here")
    target = tmp_path / "target"
    write("folder", target, "old")
    done, missing = threading.Event(), 0

    def look() -> None:
        nonlocal missing
        while not done.is_set():
            try:
                os.stat(target)
            except FileNotFoundError:
                missing += 1

    looking = threading.Thread(target=look)
    looking.start()
    for number in range(200):
        write("folder", target, str(number))
    done.set()
    looking.join()
    assert not missing


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_replacement_that_is_interrupted(call: int, tmp_path: Path) -> None:
    """Without an exchange of names, at each rename: the old folder is there again, or the new one."""
    original, calls = os.rename, 0

    def interrupted(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        original(source, target)

    write("folder", tmp_path / "target", "old")
    with (
        patch.object(staging, "_exchange", lambda one, other: False),
        patch.object(os, "rename", interrupted),
        pytest.raises(KeyboardInterrupt),
    ):
        write("folder", tmp_path / "target", "new")
    assert names(tmp_path) == {"target"}
    assert read("folder", tmp_path / "target") == "old"


def test_a_replacement_that_is_killed_halfway(tmp_path: Path) -> None:
    """The next writer that finds only the old folder, set aside, puts it back."""
    write("folder", tmp_path / "target", "old")
    (tmp_path / "target").rename(tmp_path / ".target.old-0123456789ab")
    (tmp_path / ".target.partial-0123456789ab").mkdir()
    sweep(tmp_path / "target")
    assert names(tmp_path) == {"target"}
    assert read("folder", tmp_path / "target") == "old"


def _compete(target: Path, start: Barrier, replace: bool) -> None:
    start.wait()
    try:
        write("folder", target, str(os.getpid()), replace=replace)
    except FileExistsError:
        os._exit(17)
    os._exit(0)


@pytest.mark.slow
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("turn", range(3))
def test_many_writers_at_once(replace: bool, turn: int, tmp_path: Path) -> None:
    """Without `replace` one of them succeeds; with it, all do, one after the other."""
    context = multiprocessing.get_context("spawn")
    arguments = (tmp_path / "target", context.Barrier(4), replace)
    writers = [context.Process(target=_compete, args=arguments) for _ in range(4)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    winners = [str(process.pid) for process in writers if process.exitcode == 0]
    assert len(winners) == (4 if replace else 1), [process.exitcode for process in writers]
    assert names(tmp_path) == {"target"}
    assert read("folder", tmp_path / "target") in winners


def test_whether_a_file_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    check_writable(tmp_path / "target")
    assert names(tmp_path) == {"target"}
    assert (tmp_path / "target").read_text() == "old"
    for impossible in (tmp_path / "none/target", tmp_path / "target/file", tmp_path / ("x" * 300)):
        with pytest.raises(OSError):
            check_writable(impossible)


def test_without_locks(tmp_path: Path) -> None:
    """Writing goes on as before; nothing is taken for a leftover."""
    (tmp_path / ".target.partial-0123456789ab").touch()
    with patch("fcntl.flock", side_effect=OSError(38, "no locks")):
        write("folder", tmp_path / "target", "old")
        write("folder", tmp_path / "target", "new")
        write("file", tmp_path / "file")
    assert names(tmp_path) == {"target", "file", ".target.partial-0123456789ab"}
    assert read("folder", tmp_path / "target") == "new"
