"""Faults of the machine and of others: full disks, and files that change while they are used."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from support.command import COMMAND, Result, assert_one_line_error
from trigraph.exporter import ExportOptions, export
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Options, Sampling, load

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits, signals and mounts are those of POSIX")

GREEDY = Sampling(temperature=0.0)


def test_files_that_may_not_grow(rich_source: Path, tmp_path: Path) -> None:
    """A limit of size fails the first write past it, in one file after the other: the largest file needs the most."""
    whole = tmp_path / "whole"
    export(rich_source, whole, ExportOptions(weights="copy"))
    sizes = sorted({path.stat().st_size for path in whole.iterdir()})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (0, *(size - 1 for size in sizes)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            with pytest.raises(TrigraphError, match=r"cannot be written: File too large"):
                export(rich_source, tmp_path / "new/package", ExportOptions(weights="copy"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert {path.name for path in tmp_path.iterdir()} == {"whole"}


_FILL = """
import os, subprocess, sys
from pathlib import Path
from trigraph.exporter import ExportOptions, export
from trigraph.models.errors import TrigraphError
source, disk, step = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
kilobytes, failures = 4, 0
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", disk], check=True)
while True:
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", disk], check=True)
    try:
        export(source, disk / "package", ExportOptions(weights="copy"))
        break
    except TrigraphError as error:
        assert "cannot be written: No space left on device" in str(error), error
        assert not os.listdir(disk), os.listdir(disk)
        failures += 1
        kilobytes += step
print(failures)
"""


def test_a_disk_that_fills_up(rich_source: Path, tmp_path: Path) -> None:
    """On disks from a page to just enough, so that each file is the one that does not fit."""
    (tmp_path / "disk").mkdir()
    inside = ["unshare", "--mount", "--map-root-user"] if os.getuid() else ["unshare", "--mount"]
    mount = ["mount", "-t", "tmpfs", "none", str(tmp_path / "disk")]
    if not shutil.which("unshare") or subprocess.run([*inside, *mount], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    total = rich_source.stat().st_size // 1024
    arguments = [str(rich_source), str(tmp_path / "disk"), str(max(4, total // 30))]
    done = subprocess.run(
        [*inside, sys.executable, "-c", _FILL, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 20


def test_output_that_cannot_be_written(copied_package: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    for arguments in (
        ["run", copied_package, "-p", "And", "-n", 4],
        ["inspect", copied_package],
        ["run", copied_package, "-p", "a", "-n", 4, "--json"],
    ):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*COMMAND, *map(str, arguments)], stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert_one_line_error(Result(done.returncode, "", done.stderr), "No space left on device")


def test_weights_that_are_replaced_live_on(copied_package: Path, tmp_path: Path) -> None:
    """Deleting or renaming over the file leaves a loaded model as it is; the next load refuses the new file."""
    copied = tmp_path / "package"
    shutil.copytree(copied_package, copied)
    engine = load(copied, threads=1)
    options = Options(GREEDY, max_tokens=12)
    before = engine.generate("In the beginning", options).run()
    (weights,) = copied.glob("*.gguf")
    (tmp_path / "new").write_bytes(bytes(weights.stat().st_size))
    (tmp_path / "new").rename(weights)
    assert engine.generate("In the beginning", options).run() == before
    weights.unlink()
    assert engine.generate("In the beginning", options).run() == before
    with pytest.raises(TrigraphError, match="weights are gone"):
        load(copied, threads=1)


@pytest.mark.parametrize("change", ["write", "append"])
def test_weights_that_are_written_to_are_noticed(change: str, copied_package: Path, tmp_path: Path) -> None:
    copied = tmp_path / "package"
    shutil.copytree(copied_package, copied)
    engine = load(copied, threads=1)
    engine.generate("And", Options(GREEDY, max_tokens=2)).run()
    (weights,) = copied.glob("*.gguf")
    time.sleep(0.01)
    with open(weights, "r+b") as file:
        file.seek(0, os.SEEK_END if change == "append" else os.SEEK_SET)
        file.write(b"GGUF")
    with pytest.raises(TrigraphError, match="were written to while in use; load the model again"):
        engine.generate("And", Options(GREEDY, max_tokens=2))


def test_weights_that_are_cut_short_end_the_program_with_a_sentence(copied_package: Path, tmp_path: Path) -> None:
    copied = tmp_path / "package"
    shutil.copytree(copied_package, copied)
    (weights,) = copied.glob("*.gguf")
    arguments = ["run", copied, "-p", "And", "--ignore-eos", "-t", "1", "--temp", "1.5"]
    with subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        os.truncate(weights, 4096)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (2, 0), errors  # 0: the whole text was there before
    if process.returncode:
        assert errors.startswith(b"error: the weights were cut short while in use")


def test_a_source_that_is_cut_short_while_it_is_converted(rich_source: Path, tmp_path: Path) -> None:
    growing = tmp_path / "model.gguf"
    shutil.copy(rich_source, growing)

    def cut(stage: str, done: int, total: int) -> None:
        if stage == "convert":
            os.truncate(growing, growing.stat().st_size // 2)

    with (
        patch("trigraph.exporter.graphs.weights.CHUNK_ELEMENTS", 4096),
        pytest.raises(TrigraphError, match="became shorter"),
    ):
        export(growing, tmp_path / "package", ExportOptions(), cut)
    assert {path.name for path in tmp_path.iterdir()} == {"model.gguf"}
