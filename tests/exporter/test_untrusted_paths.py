"""Nothing in a GGUF file or a package makes us read or write outside of the folders that the user named."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from support.models.gguf_bytes import Entry, gguf_bytes
from support.models.random_gguf import write_random
from trigraph.exporter import ExportOptions, describe, export, read_manifest
from trigraph.models import GGUFFile, TrigraphError
from trigraph.models.synth import write_synthetic
from trigraph.runtime import load

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need privileges there")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("source") / "model.gguf", "qwen35", preset="nano")


@pytest.fixture
def package(source: Path, tmp_path: Path) -> Path:
    export(source, tmp_path / "named/package")
    (tmp_path / "named/package/chat_template.jinja").write_text("{{ messages }}")
    return tmp_path / "named/package"


def refused(package: Path, text: str) -> None:
    with pytest.raises(TrigraphError, match=text) as error:
        load(package, threads=1)
    assert "\n" not in str(error.value)


FILES = ("manifest.json", "verify.onnx", "draft.onnx", "tokenizer.json", "chat_template.jinja", "model.gguf")


@pytest.mark.parametrize("name", FILES)
def test_a_symbolic_link_out_of_the_package(name: str, package: Path, tmp_path: Path, operator_library: Path) -> None:
    """Even to the very same content; within the package a link may go where it wants."""
    (package / name).rename(tmp_path / "elsewhere")
    (package / name).symlink_to(tmp_path / "elsewhere")
    refused(package, f"{name}: leads out of {package}")
    (package / name).unlink()
    (tmp_path / "elsewhere").rename(package / "inside")
    (package / name).symlink_to("inside")
    load(package, threads=1)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_never_ends(name: str, package: Path, operator_library: Path) -> None:
    """Neither a device nor a pipe is read, nor a folder."""
    (package / name).unlink()
    (package / name).symlink_to("/dev/zero")
    refused(package, name)
    (package / name).unlink()
    os.mkfifo(package / name)
    refused(package, name)
    (package / name).unlink()
    (package / name).mkdir()
    refused(package, name)


def test_a_package_named_through_a_link(package: Path, tmp_path: Path, operator_library: Path) -> None:
    """The user may name the folder as he likes."""
    (tmp_path / "link").symlink_to(package)
    load(tmp_path / "link", threads=1)


def edit(package: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((package / "manifest.json").read_text())
    change(content)
    (package / "manifest.json").write_text(json.dumps(content))


@pytest.mark.parametrize("location", ["../secret.gguf", "a/../../secret.gguf", "..\\secret.gguf", "C:\\secret", ""])
def test_locations_in_a_manifest(location: str, package: Path, tmp_path: Path) -> None:
    (tmp_path / "named/secret.gguf").write_bytes((package / "model.gguf").read_bytes())
    edit(package, lambda content: content["weight_files"][0].update(location=location))
    refused(package, "is not a path inside a folder")
    edit(package, lambda content: content["weight_files"][0].update(location=str(tmp_path / "named/secret.gguf")))
    refused(package, "is not a path inside a folder")


def test_a_reference_reaches_gguf_files_only(source: Path, tmp_path: Path) -> None:
    """A package that refers to weights elsewhere cannot refer to anything else, even with the right size and hash."""
    export(source, tmp_path / "package", ExportOptions(weights="reference"))
    secret = tmp_path / "secret"
    secret.write_text("password")
    digest = hashlib.sha256(b"password").hexdigest()

    def refer(content: dict[str, Any]) -> None:
        content["weights_folder"] = str(tmp_path)
        content["weight_files"][0].update(location="secret", bytes=8, header_bytes=8, header_sha256=digest)

    edit(tmp_path / "package", refer)
    refused(tmp_path / "package", "secret: the package's weights are not a GGUF file")
    secret.rename(tmp_path / "side.bin")
    edit(tmp_path / "package", lambda content: content["weight_files"][0].update(location="side.bin"))
    refused(tmp_path / "package", "are not a GGUF file")


def test_a_hash_over_more_than_a_header(package: Path) -> None:
    edit(package, lambda content: content["weight_files"][0].update(header_bytes=1 << 40))
    refused(package, r"weight_files\.header_bytes")


@pytest.mark.parametrize(
    "location",
    ["../secret.gguf", "/etc/passwd", "manifest.json", "other.gguf", "./model.gguf", "*/_ORT_MEM_ADDR_/*", "", None],
)
@pytest.mark.parametrize("place", ["initializer", "attribute", "branch", "function", "default"])
def test_external_data_of_a_graph(location: str | None, place: str, package: Path, operator_library: Path) -> None:
    """Wherever a tensor of a graph hides, it is in a weight file of the manifest or in the graph itself."""
    (package / "other.gguf").write_bytes(bytes(64))
    model = onnx.load(package / "verify.onnx", load_external_data=False)
    tensor = TensorProto(name="hidden", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    if location is not None:
        for key, value in (("location", location), ("offset", "0"), ("length", "8")):
            tensor.external_data.add(key=key, value=value)
    constant = helper.make_node("Constant", [], ["hidden"], value=tensor)
    match place:
        case "initializer":
            model.graph.initializer.append(tensor)
        case "attribute":
            model.graph.node.append(constant)
        case "branch":
            branch = helper.make_graph([constant], "branch", [], [])
            model.graph.node.append(helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch))
        case "function":
            opset = [helper.make_opsetid("", 23)]
            model.functions.append(helper.make_function("local", "F", [], ["hidden"], [constant], opset))
        case "default":
            default = [helper.make_attribute("value", tensor)]
            model.functions.append(helper.make_function("local", "F", [], [], [], [], attribute_protos=default))
    (package / "verify.onnx").write_bytes(model.SerializeToString())
    refused(package, "verify.onnx: tensor 'hidden' is in .* not a weight file of the package")


def test_external_data_past_the_end(package: Path, operator_library: Path) -> None:
    model = onnx.load(package / "verify.onnx", load_external_data=False)
    (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == "token_embd.weight")
    for entry in tensor.external_data:
        if entry.key == "offset":
            entry.value = str((package / "model.gguf").stat().st_size - 16)
    (package / "verify.onnx").write_bytes(model.SerializeToString())
    refused(package, r"token_embd.weight.* is not inside its file")


def test_split_files_stay_in_their_folder(tmp_path: Path) -> None:
    """The names of parts come from the name that the user gave, whatever a header says."""
    keys = {"general.architecture": "qwen35", "split.no": 0, "split.count": 2, "split.file": "../../etc/passwd"}
    part = gguf_bytes(keys, {"a": Entry((8,), bytes(32))})
    (tmp_path / "folder").mkdir()
    for name in ("x.gguf", "..-00001-of-00003.gguf", "%2e%2e-00001-of-00002.gguf", "-00001-of-00002.gguf"):
        path = tmp_path / "folder" / name
        path.write_bytes(part)
        with pytest.raises(TrigraphError, match=r"its name does not end in|folder/.*-00002-of-00002\.gguf: is missing"):
            GGUFFile.open(path)


# Writing


def test_an_export_writes_through_no_link(source: Path, tmp_path: Path) -> None:
    """Files of an old package that are links to others are replaced; what they lead to stays as it is."""
    package, outside = tmp_path / "package", tmp_path / "outside"
    export(source, package)
    outside.mkdir()
    for name in ("tokenizer.json", "verify.onnx", "manifest.json"):
        (outside / name).write_bytes((package / name).read_bytes())
        (package / name).unlink()
        if name == "verify.onnx":
            (package / name).symlink_to(outside / name)
        else:
            os.link(outside / name, package / name)
    before = {path.name: path.read_bytes() for path in outside.iterdir()}
    export(source, package, ExportOptions(max_context=100, weights="copy"))
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == before
    assert not any(path.is_symlink() for path in package.iterdir())
    assert read_manifest(package).max_context == 100
    assert (package / "model.gguf").stat().st_nlink == 1


@pytest.mark.parametrize("name", ["notes.gguf", "tokenizer.json"])
def test_an_export_removes_no_folder(name: str, source: Path, tmp_path: Path) -> None:
    export(source, tmp_path / "package")
    (tmp_path / "package" / name).unlink(missing_ok=True)
    (tmp_path / "package" / name).mkdir()
    (tmp_path / "package" / name / "text").write_text("mine")
    with pytest.raises(TrigraphError, match=f"{name}: is not part of a package, and would be lost"):
        export(source, tmp_path / "package")
    assert (tmp_path / "package" / name / "text").read_text() == "mine"


def test_an_export_removes_links_not_what_they_lead_to(source: Path, tmp_path: Path) -> None:
    export(source, tmp_path / "package")
    (tmp_path / "other.gguf").write_text("mine")
    (tmp_path / "package/other.gguf").symlink_to(tmp_path / "other.gguf")
    (tmp_path / "package/broken.gguf").symlink_to(tmp_path / "missing")
    export(source, tmp_path / "package")
    assert (tmp_path / "other.gguf").read_text() == "mine"
    assert not any(path.is_symlink() for path in (tmp_path / "package").iterdir())


def test_a_copy_is_independent(source: Path, tmp_path: Path) -> None:
    """Also of a source that is a link itself."""
    (tmp_path / "model.gguf").symlink_to(source)
    export(tmp_path / "model.gguf", tmp_path / "package", ExportOptions(weights="copy"))
    copied = tmp_path / "package/model.gguf"
    assert not copied.is_symlink() and not copied.samefile(source)
    assert describe(tmp_path / "package").mtp


def test_a_synthetic_file_replaces_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "out.gguf").symlink_to(tmp_path / "precious")
    write_synthetic("tiny-dense", tmp_path / "out.gguf", layers=1)
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (tmp_path / "out.gguf").is_symlink()


def test_names_in_a_file_are_not_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operator_library: Path) -> None:
    """Neither the model's name nor anything else in the metadata decides where a cache entry goes."""
    from support.models.random_gguf import changed

    def rename(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        pairs["general.name"] = "../../../escape"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    load(changed(tmp_path, rename, "qwen35"), threads=1)
    assert {path.name for path in tmp_path.iterdir()} == {
        "cache",
        "changed.gguf",
        *{path.name for path in tmp_path.glob("*.gguf")},
    }
    (entry,) = (tmp_path / "cache/trigraph").iterdir()
    assert entry.name.startswith("changed-")
