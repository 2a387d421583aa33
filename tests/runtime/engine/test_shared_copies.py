"""Repacked weights that several processes share: one copy, made once, whatever becomes of the process that makes it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.device.shared_copies import shared_copies

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files in memory that other processes find: Linux")

SIZES = [1000, 4096, 300_000]
PROGRAM = """
import sys, time
from pathlib import Path
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.device.shared_copies import shared_copies

path, made, sizes, hangs = Path(sys.argv[1]), Path(sys.argv[2]), eval(sys.argv[3]), int(sys.argv[4])
weights = MappedWeights({"a": path})
copies = shared_copies(weights, "R8")
address, kept = weights.files[0].address, []

def fill(size):
    def filled(copy):
        copy[: size // 2] = size % 251
        with made.open("a") as log:
            log.write(f"{size}\\n")
        if size == hangs:
            print("hangs", flush=True)
            time.sleep(1000)
        copy[:] = size % 251
    return filled

for size in sizes:
    kept.append(copies.copy(address, (size,), fill(size), lambda seconds: None))
    address += size
print([set(copy.tolist()) for copy in kept], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "weights").write_bytes(bytes(sum(SIZES)))
    (tmp_path / "made").touch()
    return tmp_path / "weights", tmp_path / "made"


def start(files: tuple[Path, Path], hangs: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, *map(str, files), str(SIZES), str(hangs)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.communicate("")
    assert process.returncode == 0


def refuse(copied: object) -> None:
    pytest.fail("nothing is to be copied, or waited for")


ALL = str([{size % 251} for size in SIZES])


def test_processes_make_each_copy_once(files: tuple[Path, Path]) -> None:
    both = [start(files), start(files)]
    assert [said(process) for process in both] == [ALL, ALL]
    assert sorted(files[1].read_text().split()) == sorted(map(str, SIZES))
    for process in both:
        end(process)


def test_one_that_is_killed_leaves_its_copy_to_the_other(files: tuple[Path, Path]) -> None:
    killed = start(files, hangs=SIZES[1])
    assert said(killed) == "hangs"
    other = start(files)
    killed.send_signal(signal.SIGKILL)
    assert said(other) == ALL
    assert files[1].read_text().split().count(str(SIZES[1])) == 2
    killed.communicate()
    end(other)


def test_they_go_with_the_last_process_and_with_the_file(files: tuple[Path, Path]) -> None:
    first = start(files)
    assert said(first) == ALL
    weights = MappedWeights({"a": files[0]})
    copies = shared_copies(weights, "R8")
    assert copies is not None and copies.begun
    other = shared_copies(weights, "R16")
    assert other is not None and not other.begun
    end(first)
    read = copies.copy(weights.files[0].address, (SIZES[0],), refuse, refuse)
    assert set(read.tolist()) == {SIZES[0] % 251}
    del copies, read
    again = shared_copies(weights, "R8")
    assert again is not None and not again.begun
    del again
    files[0].write_bytes(bytes(10))  # another file, of the same name
    changed = shared_copies(MappedWeights({"a": files[0]}), "R8")
    assert changed is not None and not changed.begun


def test_files_that_another_program_has_locked_are_copied_alone(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    monkeypatch.setattr("trigraph.runtime.device.shared_copies._ATTEMPTS", 2)
    with files[0].open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert shared_copies(MappedWeights({"a": files[0]}), "R8") is None


def test_a_copy_that_another_process_makes_is_waited_for(files: tuple[Path, Path]) -> None:
    class StoppedError(Exception):
        pass

    def stop(seconds: float) -> None:
        raise StoppedError

    maker = start(files, hangs=SIZES[0])
    assert said(maker) == "hangs"
    weights = MappedWeights({"a": files[0]})
    copies = shared_copies(weights, "R8")
    assert copies is not None
    with pytest.raises(StoppedError):
        copies.copy(weights.files[0].address, (SIZES[0],), refuse, stop)
    maker.kill()
    maker.communicate()
