"""Weights are told apart by their data, not by header and size alone, and without reading them whole."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from support.models.random_gguf import write_random
from trigraph.exporter import ExportOptions, export, read_manifest
from trigraph.exporter.package import fingerprint
from trigraph.exporter.package.fingerprint import sha256_of_sample
from trigraph.models.errors import TrigraphError
from trigraph.models.gguf_file import GGUFFile
from trigraph.runtime.cache.identity import ModelIdentity

MIB = 1 << 20


def sparse(path: Path, size: int) -> Path:
    """A file of zeros that takes no disk."""
    path.touch()
    os.truncate(path, size)
    return path


def overwrite(path: Path, start: int, count: int) -> None:
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(b"\xff" * count)


def test_other_data_under_the_same_header(tmp_path: Path) -> None:
    """Another fine-tune of a model: neither its package nor a session file may be taken for this one's."""
    source = write_random(tmp_path / "model.gguf", "qwen35moe", preset="nano")
    export(source, tmp_path / "package", ExportOptions(weights="copy"))
    before = ModelIdentity.of(read_manifest(tmp_path / "package"))
    copied = tmp_path / "package/model.gguf"
    (header,) = GGUFFile.open(copied).header_bytes.values()
    overwrite(copied, (header + copied.stat().st_size) // 2, 8)
    with pytest.raises(TrigraphError, match=r"changed since the export \(other tensor data\)"):
        read_manifest(tmp_path / "package")
    after = ModelIdentity.of(export(copied, tmp_path / "other"))
    assert (after.name, after.kv_type, after.mtp_head) == (before.name, before.kv_type, before.mtp_head)
    assert after.weights != before.weights


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 3 * MIB + 5, 16 * MIB])
def test_a_small_file_counts_whole(size: int, tmp_path: Path) -> None:
    path = sparse(tmp_path / "file", size)
    seen = {sha256_of_sample(path)}
    for position in {0, size // 3, size // 2, size - 1} if size else set():
        overwrite(path, position, 1)
        seen.add(sha256_of_sample(path))
    assert len(seen) == 1 + len({0, size // 3, size // 2, size - 1} if size else set())


@pytest.mark.parametrize("place", [0.0, 0.1234, 0.5, 0.987, 1.0])
def test_two_megabytes_of_a_gigabyte(place: float, tmp_path: Path) -> None:
    path = sparse(tmp_path / "file", 1024 * MIB + 7)
    before = sha256_of_sample(path)
    overwrite(path, int(place * (path.stat().st_size - 2 * MIB)), 2 * MIB)
    assert sha256_of_sample(path) != before


class CountedFile(io.FileIO):
    """A file that counts the bytes that are read."""

    bytes_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size)
        CountedFile.bytes_read += len(content)
        return content


def test_16_megabytes_of_22_gigabytes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sparse(tmp_path / "file", 22 << 30)
    monkeypatch.setattr(fingerprint, "open", lambda name, *mode, **options: CountedFile(name), raising=False)
    before = sha256_of_sample(path)
    assert 0 < CountedFile.bytes_read <= 16 * MIB
    for start in (0, (22 << 30) - 1):
        overwrite(path, start, 1)
        assert sha256_of_sample(path) != before
        before = sha256_of_sample(path)
