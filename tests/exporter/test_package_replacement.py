"""Packages are written whole or not at all: interrupts, kills, several at once; what is replaced, and what never is."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from support.models.packages import FILES, names
from support.models.random_gguf import write_random
from trigraph.exporter import ExportOptions, export, is_package, read_manifest
from trigraph.models.errors import TrigraphError


def interrupt_at(target: Any, name: str, call: int) -> Any:
    """Let a function be interrupted at its n-th call, as a signal would."""
    original, calls = getattr(target, name), 0

    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return original(*arguments, **keywords)

    return patch.object(target, name, interrupted)


@pytest.mark.parametrize(("function", "call"), [("link", 1), ("fsync", 1), ("fsync", 4), ("rename", 1)])
def test_interrupted(function: str, call: int, nano_gguf: Path, tmp_path: Path) -> None:
    with interrupt_at(os, function, call), pytest.raises(KeyboardInterrupt):
        export(nano_gguf, tmp_path / "new/deep/package")
    assert names(tmp_path) == set()


@pytest.mark.parametrize(("function", "call"), [("link", 1), ("fsync", 2), ("rename", 1)])
def test_interrupted_replacement(function: str, call: int, nano_gguf: Path, tmp_path: Path) -> None:
    """The old package is still there, and nothing else."""
    old = export(nano_gguf, tmp_path / "package", ExportOptions(max_context=100))
    with interrupt_at(os, function, call), pytest.raises(KeyboardInterrupt):
        export(nano_gguf, tmp_path / "package", ExportOptions(max_context=200))
    assert names(tmp_path) == {"package"}
    assert read_manifest(tmp_path / "package") == old


def test_replacement(nano_gguf: Path, tmp_path: Path) -> None:
    """From the old package's own link too, which is then another name of the same file."""
    export(nano_gguf, tmp_path / "package")
    export(tmp_path / "package/model.gguf", tmp_path / "package", ExportOptions(max_context=200))
    assert names(tmp_path) == {"package"}
    assert read_manifest(tmp_path / "package").max_context == 200
    assert (tmp_path / "package/model.gguf").samefile(nano_gguf)


_STOPPED = """
import os, signal, sys
from pathlib import Path
from trigraph.exporter import ExportOptions, export
signal.signal(signal.SIGINT, signal.default_int_handler)
stop = lambda *step: os.kill(os.getpid(), int(sys.argv[3]))
export(Path(sys.argv[1]), Path(sys.argv[2]), ExportOptions(weights="copy"), stop)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_by_a_signal(number: signal.Signals, nano_gguf: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _STOPPED, str(nano_gguf), str(tmp_path / "package"), str(int(number))]
    run = subprocess.run(command, capture_output=True, check=False)
    assert run.returncode in (-number, 128 + number)
    assert names(tmp_path) == set()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there are no locks")
def test_killed(nano_gguf: Path, tmp_path: Path) -> None:
    """Nobody can tidy up then; the next export does."""
    command = [sys.executable, "-c", _STOPPED, str(nano_gguf), str(tmp_path / "package"), str(int(signal.SIGKILL))]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert names(tmp_path) and "package" not in names(tmp_path)
    export(nano_gguf, tmp_path / "package")
    assert names(tmp_path) == {"package"}


@pytest.mark.slow
def test_exports_to_one_folder_at_once(nano_gguf: Path, tmp_path: Path) -> None:
    """One of them makes the package; the others say that it is there."""
    command = [sys.executable, "-m", "trigraph.runtime", "export", str(nano_gguf), "-o", str(tmp_path / "package")]
    runs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [run.communicate(timeout=120)[1] for run in runs]
    assert sorted(run.returncode for run in runs) == [0, 2, 2, 2], errors
    for run, error in zip(runs, errors, strict=True):
        if run.returncode:
            assert error == f"error: {tmp_path}/package: holds a package already; --force replaces it\n"
    assert names(tmp_path) == {"package"}
    read_manifest(tmp_path / "package")


def test_interrupted_after_the_replacement(nano_gguf: Path, tmp_path: Path) -> None:
    """The new package stands, and the old one is gone all the same."""
    export(nano_gguf, tmp_path / "package")
    synced = len(FILES) + 1
    with interrupt_at(os, "fsync", synced + 1), pytest.raises(KeyboardInterrupt):
        export(nano_gguf, tmp_path / "package", ExportOptions(max_context=200))
    assert names(tmp_path) == {"package"}
    assert read_manifest(tmp_path / "package").max_context == 200


def test_replacement_loses_nothing(nano_gguf: Path, tmp_path: Path) -> None:
    """Foreign files, and weights whose last link is in the package, are not swept away."""
    package = tmp_path / "package"
    export(nano_gguf, package, ExportOptions(weights="copy"))
    export(nano_gguf, package, ExportOptions(weights="copy"))
    other = write_random(tmp_path / "other.gguf", "qwen35", preset="nano")
    with pytest.raises(TrigraphError, match=r"model\.gguf: is weights of another model"):
        export(other, package)
    (package / "model.gguf").unlink()
    (package / "notes.txt").write_text("mine")
    with pytest.raises(TrigraphError, match=r"notes\.txt: is not part of a package"):
        export(other, package)
    (package / "notes.txt").unlink()
    export(other, package)
    assert names(tmp_path) == {"package", "other.gguf"}


def test_disk_full(nano_gguf: Path, tmp_path: Path) -> None:
    with (
        patch.object(Path, "write_bytes", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
        pytest.raises(TrigraphError, match="cannot be written: No space left"),
    ):
        export(nano_gguf, tmp_path / "package")
    assert names(tmp_path) == set()


def test_targets(nano_gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/text").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "empty").mkdir()
    for target, text in (
        ("file", "is not a folder"),
        ("folder", "is not a trigraph package"),
        ("link", "is not a folder"),
        ("file/package", "cannot be written: Not a directory"),
    ):
        with pytest.raises(TrigraphError, match=text):
            export(nano_gguf, tmp_path / target)
    assert names(tmp_path) == {"file", "folder", "link", "empty"}
    assert names(tmp_path / "folder") == {"text"}
    export(nano_gguf, tmp_path / "empty")
    assert is_package(tmp_path / "empty") and not is_package(tmp_path / "folder")
    with pytest.raises(TrigraphError, match=r"empty: holds model\.gguf, which the package would refer to"):
        export(tmp_path / "empty/model.gguf", tmp_path / "empty", ExportOptions(weights="reference"))
