"""The cache of packages: where it is, and where it goes when that cannot be written."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import trigraph.exporter
from support.models.random_gguf import write_random
from trigraph.exporter import ExportOptions
from trigraph.models.errors import TrigraphError
from trigraph.runtime.engine.package_cache import cached_package, exported_models, sweep

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="users and modes are POSIX")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("source") / "model.gguf", "qwen35", preset="nano")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return folder


def no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    return "Could not determine home directory"


def home_is_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    return "Not a directory"


def home_is_read_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if os.getuid() == 0:  # whom modes do not stop
        monkeypatch.setenv("XDG_CACHE_HOME", "/proc/1")
        return "No such file or directory"
    (tmp_path / "home").chmod(0o500)
    return "Permission denied"


@pytest.mark.parametrize("prepare", [no_home, home_is_a_file, home_is_read_only])
def test_a_cache_that_cannot_be_written(
    prepare: object, source: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(prepare)
    reason = prepare(monkeypatch, tmp_path)
    entry = cached_package(source, ExportOptions())
    (notice,) = entry.notices
    assert reason in notice and str(temporary) in notice and "XDG_CACHE_HOME" in notice
    (cache,) = temporary.iterdir()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    made = (entry.folder / "manifest.json").stat().st_mtime_ns
    assert cached_package(source, ExportOptions()) == entry
    assert (entry.folder / "manifest.json").stat().st_mtime_ns == made, "it is a cache, too"


@pytest.mark.slow
def test_the_notice_reaches_the_user(source: Path, tmp_path: Path, operator_library: Path) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "trigraph.runtime", "run", str(source), "-p", "a", "-n", "1"]
    changed = {"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=os.environ | changed, capture_output=True, text=True, check=True)
    assert done.stderr.count(f"note: the cache folder cannot be written (Not a directory): {tmp_path}") == 1


def test_a_cache_that_was_filled_and_cannot_be_written(
    source: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image whose home is read-only: what is there is used."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    entry = cached_package(source, ExportOptions())
    with monkeypatch.context() as patch:
        patch.setattr(
            "trigraph.runtime.engine.package_cache.check_writable", lambda path: pytest.fail("nothing to make")
        )
        assert cached_package(source, ExportOptions()) == entry
    assert not entry.notices and not any(temporary.iterdir())


def another_exporter(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    place = Path(trigraph.exporter.__file__)
    copy = shutil.copytree(place.parent, folder / "exporter", ignore=shutil.ignore_patterns("__pycache__"))
    with open(copy / "graphs" / "ffn.py", "a") as file:
        file.write("# Changes the graphs.\n")
    monkeypatch.setattr(trigraph.exporter, "__file__", str(copy / place.name))


def another_patch_version(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr("trigraph.runtime.engine.package_cache.library_version", lambda: "0.1.99")


def another_contract(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (path,) = (folder / "cache").glob("trigraph/*/package/manifest.json")
    path.write_text(path.read_text().replace('"contract_version": ', '"contract_version": 1'))


@pytest.mark.parametrize("change", [another_exporter, another_patch_version, another_contract])
def test_packages_of_another_exporter_are_made_anew(
    change: Callable[[pytest.MonkeyPatch, Path], None], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    manifest = cached_package(source, ExportOptions()).folder / "manifest.json"
    made, content = manifest.stat().st_mtime_ns, manifest.read_text()
    change(monkeypatch, tmp_path)
    cached_package(source, ExportOptions())
    again = manifest.stat().st_mtime_ns
    assert again > made and manifest.read_text() == content
    cached_package(source, ExportOptions())
    assert manifest.stat().st_mtime_ns == again, "it is current now"


@pytest.mark.parametrize("kind", ["open to all", "link", "file"])
def test_a_temporary_cache_of_somebody_else(
    kind: str, source: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever could write there could have a package of theirs run."""
    home_is_a_file(monkeypatch, tmp_path)
    cache = temporary / f"trigraph-{os.getuid()}"
    if kind == "open to all":
        cache.mkdir()
        cache.chmod(0o777)
    elif kind == "link":
        (tmp_path / "elsewhere").mkdir()
        cache.symlink_to(tmp_path / "elsewhere")
    else:
        cache.touch()
    with pytest.raises(TrigraphError, match="XDG_CACHE_HOME"):
        cached_package(source, ExportOptions())


def test_a_bad_model_leaves_nothing(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.gguf").write_bytes(bytes(1000))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(TrigraphError, match=r"bad\.gguf"):
        cached_package(tmp_path / "bad.gguf", ExportOptions())
    assert not (tmp_path / "cache").exists() and not any(temporary.iterdir())


def test_a_full_disk(
    source: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operator_library: Path
) -> None:
    """Found while the package is written: it goes to the temporary folder, and what was begun is gone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "full"))
    place = "trigraph.models.staging._sync"

    def sync(path: Path) -> None:
        if path.is_relative_to(tmp_path / "full"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(place, sync)
    package = cached_package(source, ExportOptions())
    assert package.folder.is_relative_to(temporary) and (package.folder / "manifest.json").exists()
    (notice,) = package.notices
    assert "the cache folder cannot be written (No space left on device)" in notice and "set XDG_CACHE_HOME" in notice
    assert not [path for path in (tmp_path / "full").rglob("*") if path.is_file()]


def test_two_full_disks(
    source: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operator_library: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "full"))

    def sync(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr("trigraph.models.staging._sync", sync)
    with pytest.raises(TrigraphError, match=r"neither .*No space left.* nor .*free space, or set XDG_CACHE_HOME"):
        cached_package(source, ExportOptions())


def test_packages_of_files_that_are_gone_are_swept(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operator_library: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, second = (Path(shutil.copy(source, tmp_path / name)) for name in ("one.gguf", "two.gguf"))
    gone = cached_package(first, ExportOptions()).folder
    (listed,) = exported_models()
    assert listed.sources == (first.resolve(),) and listed.bytes > 10_000 and not listed.is_orphan
    first.unlink()
    kept = cached_package(second, ExportOptions()).folder
    assert kept.exists() and not gone.parent.exists()
    assert [one.folder for one in exported_models()] == [kept.parent]


@pytest.mark.parametrize(
    "text", ["[]", "{}", "null", "[[]]", "[[[5]]]", '[[["a\\u0000b", 1]]]', '[[["\\ud800", 1]]]', "[" * 100_000, "\0"]
)
def test_what_another_program_left_is_not_listed(text: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "source.json").write_text(text)
    sweep(tmp_path)
    assert exported_models(tmp_path) == [] and (tmp_path / "other").exists()
