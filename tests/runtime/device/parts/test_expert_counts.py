"""The file of counts beside a package."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from trigraph.runtime.device.parts.expert_counts import read_counts, write_counts

EXPERTS = {"first": 3, "second": 2}
COUNTS = {"first": np.array([1.0, 0, 2.5]), "second": np.array([0.0, 7])}
GOOD = {"format": "trigraph expert counts 1", "layers": {"first": [1, 2, 3]}}


def test_what_was_written_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "counts"
    assert read_counts(path, EXPERTS) == {} and not caplog.text, "a first start is nothing to tell of"
    write_counts(path, {name: used + 0.01 for name, used in COUNTS.items()})
    found = read_counts(path, EXPERTS)
    assert found.keys() == COUNTS.keys()
    assert all(np.array_equal(found[name], used) for name, used in COUNTS.items())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\x00",
        b"[1, 2",
        b"[1, 2]",
        b"null",
        b"[" * 100_000,
        *[
            json.dumps(GOOD | changed).encode()
            for changed in (
                {"format": "another"},
                {"layers": None},
                {"layers": {"third": [1, 2, 3]}},
                {"layers": {"first": [1, 2]}},
                {"layers": {"first": 5}},
                {"layers": {"first": [1, 2, "a"]}},
                {"layers": {"first": [1, 2, [3]]}},
                {"layers": {"first": [1, 2, -3]}},
                {"layers": {"first": [1, 2, float("nan")]}},
                {"layers": {"first": [1, 2, int("9" * 400)]}},
                {"layers": {"first": "x" * 100_000}},
                {"layers": {"first": [1, 2, "x" * 100_000]}},
            )
        ],
    ],
    ids=lambda text: text.decode(errors="replace")[:60],
)
def test_a_file_of_no_use_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture, text: bytes) -> None:
    path = tmp_path / "counts"
    path.write_bytes(json.dumps(GOOD).encode())
    assert read_counts(path, EXPERTS)
    path.write_bytes(text)
    assert read_counts(path, EXPERTS) == {}
    assert f"{path}: is not used, as it is damaged or of another model" in caplog.text
    assert len(caplog.text) < 2000


def test_where_nothing_can_be_written_counts_are_lost(tmp_path: Path) -> None:
    write_counts(tmp_path / "missing" / "counts", COUNTS)
    (tmp_path / "counts").mkdir()
    write_counts(tmp_path / "counts", COUNTS)
    assert read_counts(tmp_path / "counts", EXPERTS) == {}


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "counts")
    assert read_counts(tmp_path / "counts", EXPERTS) == {} and "is not a file" in caplog.text
