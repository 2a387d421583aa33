"""Manifests in which one value is absurd: an error that names it and stays short, or the same package."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.models.random_gguf import write_random
from trigraph.exporter import ExportOptions, describe, export, read_manifest
from trigraph.models.errors import TrigraphError

Place = tuple[str | int, ...]
ABSURD: list[Any] = [
    *("x" * 100_000, "a\0b", "/a\0b", "\ud800", "/\ud800", ["x" * 100_000] * 3, {"x" * 100_000: 1}, [], {}),
    *(int("9" * 400), -int("9" * 400), 2**63, float("inf"), float("nan"), -1, None),
]
SHORT = 1500


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extremes")
    source = write_random(folder / "model.gguf", "qwen35moe", preset="nano")
    export(source, folder / "package", ExportOptions(weights="reference"))
    return folder / "package"


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Of all values in a manifest, but of lists only the first item."""
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*at, key))


def changed(content: dict[str, Any], place: Place, value: Any) -> str:
    found = copy.deepcopy(content)
    at: Any = found
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    return json.dumps(found)


@pytest.mark.slow
def test_absurd_values(package: Path) -> None:
    path = package / "manifest.json"
    content = json.loads(path.read_text())
    refused = 0
    for place in places(content):
        for value in ABSURD:
            path.write_text(changed(content, place, value))
            try:
                read_manifest(package).check_library("0.1.0")
            except TrigraphError as error:
                assert len(str(error)) < SHORT and "9" * 100 not in str(error), (place, str(error))
                refused += 1
    path.write_text(json.dumps(content))
    assert refused > 300


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        (("weight_files",), [], "key 'weight_files' is \\(\\), expected at least one"),
        (("weight_files", 0, "location"), "\ud800", "is not a path inside a folder"),
        (("weight_files", 0, "bytes"), int("9" * 400), "key 'weight_files.bytes' is a number of 1329 bits"),
        (("weights_folder",), "/a\0b", "expected an absolute path"),
        (("notices",), ["x" * 100_000], "key 'notices' is .* expected at most 64 sentences"),
        (("state", 0, "dtype"), "x" * 100_000, "key 'state.gdn.0.state.dtype' is 'xxx.*, expected 'float32'"),
        (("operator_library", "version"), "x" * 100_000, "was exported for version x{40} of"),
    ],
)
def test_the_key_is_named(package: Path, place: Place, value: Any, text: str) -> None:
    path = package / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(changed(content, place, value))
    try:
        with pytest.raises(TrigraphError, match=text) as raised:
            read_manifest(package).check_library("0.1.0")
        assert len(str(raised.value)) < SHORT
        if place[0] != "operator_library":
            with pytest.raises(TrigraphError, match=text):
                describe(package)
    finally:
        path.write_text(json.dumps(content))
