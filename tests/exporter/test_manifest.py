"""Reading packages: what a manifest must hold, which changes are noticed, and what `describe` tells."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.models.random_gguf import write_random
from trigraph.custom_ops import library_version
from trigraph.exporter import ExportOptions, describe, export, is_package, read_manifest
from trigraph.exporter.package.manifest import OperatorLibrary
from trigraph.models.errors import TrigraphError
from trigraph.models.model import open_model
from trigraph.runtime import load


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("source") / "model.gguf", "qwen35moe", preset="nano")


def change(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Set a manifest's entry by a dotted path; None as value removes it."""

    def apply(content: dict[str, Any]) -> None:
        *path, last = key.split(".")
        at: Any = content
        for part in path:
            at = at[int(part) if isinstance(at, list) else part]
        if value is None:
            del at[last]
        else:
            at[last] = value

    return apply


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (change("contract_version", 1), "contract_version is 1, this program reads 9"),
        *(
            (change("contract_version", old), r"reads 9; .*: trigraph export MODEL.gguf -o \S+/package --force")
            for old in (6, 7, 8)
        ),
        (change("contract_version", None), "contract_version is None"),
        (change("features", None), r"key 'features' is None, expected \[\]"),
        (change("features", "images"), r"key 'features' is 'images', expected \[\]"),
        (change("features", ["streams"]), r"key 'features' is \['streams'\], expected \[\]"),
        (
            change("features", ["images", "sound"]),
            "the package has the feature 'sound', .* knows drafter, images, streams; update",
        ),
        (change("features", [{}]), "the package has the feature {}, "),
        (change("format", "other"), "is not the manifest of a trigraph package"),
        (change("kv_type", None), "key 'kv_type' is missing"),
        (change("operator_library.version", None), "key 'operator_library.version' is missing"),
        (change("config.hidden", None), "key 'config.hidden' is missing"),
        (change("config.hidden", "64"), "key 'config.hidden' is '64', which has the wrong type"),
        (change("config.hidden", True), "key 'config.hidden' is 'True'"),
        (change("config.recurrent", [1, 0]), r"key 'config.recurrent\[0\]'"),
        (change("state", {}), "key 'state' is '{}'"),
        (change("state.0.dims", [1.5]), r"key 'state\[0\].dims\[0\]'"),
        (change("graphs", ["verify", "../verify"]), r"names '../verify'"),
        (change("graphs", ["verify", "chat"]), "names 'chat'"),
        (change("weights_folder", "models"), "expected an absolute path"),
        (change("weight_files.0.location", "../model.gguf"), "not a path inside a folder"),
        (change("weight_files.0.location", "a/../../model.gguf"), "not a path inside a folder"),
        (change("weight_files.0.location", "..\\model.gguf"), "not a path inside a folder"),
        (change("weight_files.0.location", "/etc/passwd"), "not a path inside a folder"),
        (change("weight_files.0.location", "C:model.gguf"), "not a path inside a folder"),
        (change("weight_files.0.location", ""), "not a path inside a folder"),
        (change("weight_files.0.location", "other.gguf"), "weights are gone"),
        (change("weight_files.0.bytes", 5), "have changed since the export"),
        (change("weight_files.0.header_sha256", "00"), r"have changed since the export \(another header\)"),
    ],
)
def test_bad_manifest(edit: Callable[[dict[str, Any]], None], text: str, source: Path, tmp_path: Path) -> None:
    export(source, tmp_path / "package")
    path = tmp_path / "package/manifest.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    with pytest.raises(TrigraphError, match=text) as error:
        read_manifest(tmp_path / "package")
    assert "\n" not in str(error.value)


def test_operator_library(source: Path, tmp_path: Path) -> None:
    manifest = export(source, tmp_path / "package")
    assert manifest.operator_library == OperatorLibrary("trigraph", library_version())
    made_for = dataclasses.replace(manifest, operator_library=OperatorLibrary("trigraph", "1.4.2"))
    for version in ("1.4.2", "1.4.0", "1.4.11", "1.4"):
        made_for.check_library(version)
    for version in ("1.5.2", "2.4.2", "0.0.0", "1", "1.40", ""):
        with pytest.raises(
            TrigraphError, match=rf"exported for version 1\.4\.2 .*, and the one here is {version}; export"
        ):
            made_for.check_library(version)


def test_load_refuses_another_operator_library(source: Path, tmp_path: Path) -> None:
    export(source, tmp_path / "package")
    path = tmp_path / "package/manifest.json"
    content = json.loads(path.read_text())
    content["operator_library"]["version"] = "99.0.0"
    path.write_text(json.dumps(content))
    with pytest.raises(TrigraphError, match=r"exported for version 99\.0\.0 of the operator library 'trigraph'"):
        load(tmp_path / "package")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100000, b'{"a":' * 100000, b"null"])
def test_malformed_manifest(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(TrigraphError, match=r"is not (valid JSON|the manifest)"):
        read_manifest(tmp_path)
    assert not is_package(tmp_path)


def test_damaged_packages(source: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    with pytest.raises(TrigraphError, match="it has no manifest"):
        read_manifest(tmp_path)
    export(source, package, ExportOptions(weights="copy"))
    (package / "draft.onnx").rename(tmp_path / "draft.onnx")
    with pytest.raises(TrigraphError, match=r"has no draft\.onnx"):
        read_manifest(package)
    (package / "draft.onnx").write_text("nonsense")
    with pytest.raises(TrigraphError, match=r"draft\.onnx: is not an ONNX model"):
        describe(package)
    weights = bytearray((package / "model.gguf").read_bytes())
    weights[60] ^= 1
    (package / "model.gguf").write_bytes(weights)
    with pytest.raises(TrigraphError, match="another header"):
        read_manifest(package)
    (package / "model.gguf").write_bytes(weights[:-1])
    with pytest.raises(TrigraphError, match=f"{len(weights) - 1} bytes, not {len(weights)}"):
        read_manifest(package)
    (package / "model.gguf").unlink()
    with pytest.raises(TrigraphError, match="weights are gone"):
        read_manifest(package)


def test_describe(source: Path, tmp_path: Path) -> None:
    export(source, tmp_path / "package", ExportOptions(kv_type="f32", max_context=128))
    of_file, of_package = describe(source, 1000), describe(tmp_path / "package")
    assert of_file.layers == {"Gated DeltaNet": 3, "full attention": 1} and of_file.mtp
    model = open_model(source)
    assert sum(share.bytes for share in of_file.types.values()) == sum(t.nbytes for t in model.tensors.values())
    page = 2 * 64 * model.config.kv_heads * model.config.head_dim  # keys and values of 64 positions
    assert of_file.kv_bytes == 2 * 16 * page * 2  # one layer and the head, 16 pages, 2 bytes
    assert of_package.kv_bytes == 2 * 2 * page * 4
    v_heads, dim, channels = model.config.gdn_v_heads, model.config.gdn_head_dim, model.config.gdn_channels
    assert of_file.state_bytes == 3 * 4 * (v_heads * dim * dim + 11 * channels + 8 * 2 * v_heads)
    assert of_package.operators["verify"]["trigraph.GatedDeltaNet"] == 3 and not of_file.operators
    assert json.loads(json.dumps(of_package.as_json()))["kind"] == "package"
    with pytest.raises(TrigraphError, match="context is 0"):
        describe(source, 0)
