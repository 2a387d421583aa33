"""Packages on disk: whole or not at all, with weights by link, copy or reference."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from gguf import GGMLQuantizationType, quants

from support.hollow import write_hollow
from support.random_gguf import Item, write_random
from trigraph.exporter import ExportOptions, describe, export, is_package, read_manifest
from trigraph.models.errors import TrigraphError
from trigraph.models.model import open_model

FILES = {"prefill.onnx", "draft.onnx", "verify.onnx", "manifest.json", "tokenizer.json"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("source") / "model.gguf", "qwen35moe", preset="nano")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# Weights


def test_link(source: Path, tmp_path: Path) -> None:
    manifest = export(source, tmp_path / "package")
    assert names(tmp_path) == {"package"}
    assert names(tmp_path / "package") == FILES | {"model.gguf"}
    assert (tmp_path / "package/model.gguf").samefile(source)
    assert read_manifest(tmp_path / "package") == manifest
    assert manifest.weight_paths(tmp_path / "package") == {"model.gguf": tmp_path / "package/model.gguf"}


def test_link_through_a_symbolic_link(source: Path, tmp_path: Path) -> None:
    """Model caches hold symbolic links; the package gets the file itself."""
    (tmp_path / "named.gguf").symlink_to(source)
    export(tmp_path / "named.gguf", tmp_path / "package")
    linked = tmp_path / "package/named.gguf"
    assert linked.samefile(source) and not linked.is_symlink()


def test_copy(source: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    export(source, tmp_path / "package", ExportOptions(weights="copy"), lambda *step: seen.append(step))
    copied = tmp_path / "package/model.gguf"
    assert not copied.samefile(source) and copied.read_bytes() == source.read_bytes()
    assert seen[-1] == ("copy", source.stat().st_size, source.stat().st_size)


def test_reference_with_converted_weights(tmp_path: Path, operator_library: Path) -> None:
    """The GGUF stays where it is; the side file, in the package, is found from the same folder."""
    (tmp_path / "models").mkdir()
    model = write_random(tmp_path / "models/model.gguf", "qwen35", preset="blocks", types={"*ffn_down*": "IQ3_S"})
    manifest = export(model, tmp_path / "out/package", ExportOptions(weights="reference"))
    assert manifest.weights_folder == str(tmp_path)
    assert [file.location for file in manifest.weight_files] == ["models/model.gguf", "out/package/side.bin"]
    assert names(tmp_path / "out/package") == FILES | {"side.bin"}
    assert read_manifest(tmp_path / "out/package") == manifest
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(operator_library))
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", manifest.weights_folder)
    for name in manifest.graphs:
        content = (tmp_path / f"out/package/{name}.onnx").read_bytes()
        ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def test_reference_from_the_root(source: Path, tmp_path: Path, operator_library: Path) -> None:
    """The deepest common folder may be the root of the file system."""
    manifest = export(source, tmp_path / "package", ExportOptions(weights="reference"))
    location = source.resolve().relative_to("/").as_posix()
    text = json.loads((tmp_path / "package/manifest.json").read_text())
    text["weights_folder"], text["weight_files"][0]["location"] = "/", location
    (tmp_path / "package/manifest.json").write_text(json.dumps(text))
    model = onnx.load(tmp_path / "package/draft.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = location if entry.key == "location" else entry.value
    assert read_manifest(tmp_path / "package").weight_files[0].bytes == manifest.weight_files[0].bytes
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(operator_library))
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP])
def test_weights_that_cannot_be_linked(number: int, tmp_path: Path) -> None:
    """They are referenced: all of them, also those that have been linked before."""
    trunk = write_random(tmp_path / "trunk.gguf", "qwen35", preset="nano", mtp=False)
    head = write_random(tmp_path / "head.gguf", "qwen35", preset="nano", mtp="only")
    original = os.link

    def link(source: Path, target: Path) -> None:
        if Path(source).name == "head.gguf":
            raise OSError(number, os.strerror(number))
        original(source, target)

    with patch.object(os, "link", link):
        manifest = export(trunk, tmp_path / "package", ExportOptions(mtp=head))
    assert manifest.weights_folder == str(tmp_path)
    assert names(tmp_path / "package") == FILES
    assert trunk.stat().st_nlink == 1
    assert read_manifest(tmp_path / "package") == manifest


def test_weights_in_the_package_cannot_be_referenced(tmp_path: Path, source: Path) -> None:
    """Where they cannot be linked into the new package either, they would be lost with the old one."""
    export(source, tmp_path / "package", ExportOptions(weights="copy"))
    inside = tmp_path / "package/model.gguf"
    before = inside.read_bytes()
    with (
        patch.object(os, "link", side_effect=OSError(errno.EPERM, os.strerror(errno.EPERM))),
        pytest.raises(TrigraphError, match=r"package: holds model\.gguf, which the package would refer to"),
    ):
        export(inside, tmp_path / "package")
    assert names(tmp_path) == {"package"} and inside.read_bytes() == before


def test_another_file_system(source: Path, tmp_path: Path) -> None:
    """The real thing, by the command: it says what it did."""
    if not os.access("/dev/shm", os.W_OK) or os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one file system only")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        out = Path(folder) / "package"
        command = [sys.executable, "-m", "trigraph.runtime", "export", str(source), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr.startswith(f"note: {source} cannot be hard-linked into {out}, which refers to it instead")
        assert read_manifest(out).weights_folder == "/"


def test_a_link_that_fails_for_another_reason(source: Path, tmp_path: Path) -> None:
    with (
        patch.object(os, "link", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
        pytest.raises(TrigraphError, match="cannot be written: No space left"),
    ):
        export(source, tmp_path / "package")
    assert names(tmp_path) == set()


def test_split_parts_and_equal_names(tmp_path: Path) -> None:
    (tmp_path / "head").mkdir()
    trunk = write_random(tmp_path / "model.gguf", "qwen35", preset="nano", mtp=False, split_tensors=30)
    head = write_random(tmp_path / "head" / trunk.name, "qwen35", preset="nano", mtp="only", split_tensors=0)
    manifest = export(trunk, tmp_path / "package", ExportOptions(mtp=head))
    parts = {path.name for path in tmp_path.glob("model-*.gguf")}
    assert len(parts) > 1
    assert names(tmp_path / "package") == FILES | parts | {f"mtp-{trunk.name}"}
    assert "draft" in read_manifest(tmp_path / "package").graphs
    assert manifest.config.mtp_layers == 1
    assert describe(tmp_path / "package").mtp


def test_types_without_a_kernel_are_converted(tmp_path: Path) -> None:
    """Block types become Q8_0 and vectors F32; graphs point to the copies."""
    vectors = {"blk.1.attn_norm.weight": "F16"}

    def float16_norm(item: Item) -> list[Item]:
        return [Item(item.name, item.shape, "matrix", 0.1) if item.name in vectors else item]

    types = {"*ffn_up*": "IQ3_S", "*attn_v*": "TQ2_0", **vectors}
    path = write_random(tmp_path / "model.gguf", "qwen35moe", preset="blocks", types=types, edit=float16_norm)
    seen: list[tuple[str, int, int]] = []
    manifest = export(path, tmp_path / "package", ExportOptions(), lambda *step: seen.append(step))
    assert any("IQ3_S" in notice and "Q8_0" in notice for notice in manifest.notices)
    model = open_model(path)
    graph = onnx.load(tmp_path / "package/verify.onnx", load_external_data=False).graph
    side = np.fromfile(tmp_path / "package/side.bin", np.uint8)
    assert seen[-1][0] == "convert" and seen[-1][1] <= seen[-1][2] == len(side)
    converted = set()
    for tensor in graph.initializer:
        place = {entry.key: entry.value for entry in tensor.external_data}
        if place.get("location") != "side.bin":
            continue
        start, length = int(place["offset"]), int(place["length"])
        kind = "F32" if tensor.data_type == onnx.TensorProto.FLOAT else "Q8_0"
        rows = side[start : start + length].reshape(*model.tensor(tensor.name).shape[:-1], -1)
        expected = quants.quantize(model.array(tensor.name), GGMLQuantizationType[kind])
        np.testing.assert_array_equal(rows, expected.view(np.uint8).reshape(rows.shape))
        converted.add(model.tensor(tensor.name).type)
    assert converted == {"IQ3_S", "TQ2_0", "F16"}
    (attribute,) = (
        attribute.s
        for node in graph.node
        if node.op_type == "GroupedExpertFFN" and node.name.startswith("blk.0.")
        for attribute in node.attribute
        if attribute.name == "up_type"
    )
    assert attribute == b"Q8_0"


# Whole or not at all


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
def test_interrupted(function: str, call: int, source: Path, tmp_path: Path) -> None:
    with interrupt_at(os, function, call), pytest.raises(KeyboardInterrupt):
        export(source, tmp_path / "new/deep/package")
    assert names(tmp_path) == set()


@pytest.mark.parametrize(("function", "call"), [("link", 1), ("fsync", 2), ("rename", 1)])
def test_interrupted_replacement(function: str, call: int, source: Path, tmp_path: Path) -> None:
    """The old package is still there, and nothing else."""
    old = export(source, tmp_path / "package", ExportOptions(max_context=100))
    with interrupt_at(os, function, call), pytest.raises(KeyboardInterrupt):
        export(source, tmp_path / "package", ExportOptions(max_context=200))
    assert names(tmp_path) == {"package"}
    assert read_manifest(tmp_path / "package") == old


def test_replacement(source: Path, tmp_path: Path) -> None:
    """From the old package's own link too, which is then another name of the same file."""
    export(source, tmp_path / "package")
    export(tmp_path / "package/model.gguf", tmp_path / "package", ExportOptions(max_context=200))
    assert names(tmp_path) == {"package"}
    assert read_manifest(tmp_path / "package").max_context == 200
    assert (tmp_path / "package/model.gguf").samefile(source)


_STOPPED = """
import os, signal, sys
from pathlib import Path
from trigraph.exporter import ExportOptions, export
signal.signal(signal.SIGINT, signal.default_int_handler)
stop = lambda *step: os.kill(os.getpid(), int(sys.argv[3]))
export(Path(sys.argv[1]), Path(sys.argv[2]), ExportOptions(weights="copy"), stop)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_by_a_signal(number: signal.Signals, source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _STOPPED, str(source), str(tmp_path / "package"), str(int(number))]
    run = subprocess.run(command, capture_output=True, check=False)
    assert run.returncode in (-number, 128 + number)
    assert names(tmp_path) == set()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no locks")
def test_killed(source: Path, tmp_path: Path) -> None:
    """Nobody can tidy up then; the next export does."""
    command = [sys.executable, "-c", _STOPPED, str(source), str(tmp_path / "package"), str(int(signal.SIGKILL))]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert names(tmp_path) and "package" not in names(tmp_path)
    export(source, tmp_path / "package")
    assert names(tmp_path) == {"package"}


def test_exports_to_one_folder_at_once(source: Path, tmp_path: Path) -> None:
    """One of them makes the package; the others say that it is there."""
    command = [sys.executable, "-m", "trigraph.runtime", "export", str(source), "-o", str(tmp_path / "package")]
    runs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [run.communicate(timeout=120)[1] for run in runs]
    assert sorted(run.returncode for run in runs) == [0, 2, 2, 2], errors
    for run, error in zip(runs, errors, strict=True):
        if run.returncode:
            assert error == f"error: {tmp_path}/package: holds a package already; --force replaces it\n"
    assert names(tmp_path) == {"package"}
    read_manifest(tmp_path / "package")


def test_interrupted_after_the_replacement(source: Path, tmp_path: Path) -> None:
    """The new package stands, and the old one is gone all the same."""
    export(source, tmp_path / "package")
    synced = len(FILES) + 1
    with interrupt_at(os, "fsync", synced + 1), pytest.raises(KeyboardInterrupt):
        export(source, tmp_path / "package", ExportOptions(max_context=200))
    assert names(tmp_path) == {"package"}
    assert read_manifest(tmp_path / "package").max_context == 200


def test_replacement_loses_nothing(source: Path, tmp_path: Path) -> None:
    """Foreign files, and weights whose last link is in the package, are not swept away."""
    package = tmp_path / "package"
    export(source, package, ExportOptions(weights="copy"))
    export(source, package, ExportOptions(weights="copy"))
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


def test_disk_full(source: Path, tmp_path: Path) -> None:
    with (
        patch.object(Path, "write_bytes", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
        pytest.raises(TrigraphError, match="cannot be written: No space left"),
    ):
        export(source, tmp_path / "package")
    assert names(tmp_path) == set()


def test_targets(source: Path, tmp_path: Path) -> None:
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
            export(source, tmp_path / target)
    assert names(tmp_path) == {"file", "folder", "link", "empty"}
    assert names(tmp_path / "folder") == {"text"}
    export(source, tmp_path / "empty")
    assert is_package(tmp_path / "empty") and not is_package(tmp_path / "folder")
    with pytest.raises(TrigraphError, match=r"empty: holds model\.gguf, which the package would refer to"):
        export(tmp_path / "empty/model.gguf", tmp_path / "empty", ExportOptions(weights="reference"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (ExportOptions(kv_type="q8_0"), "kv-type is 'q8_0', expected one of f16, f32"),
        (ExportOptions(activations="int4"), "activations is 'int4'"),
        (ExportOptions(weights="move"), "weights is 'move'"),
        (ExportOptions(max_context=0), "max-context is 0, expected 1 to 4096"),
        (ExportOptions(max_context=5000), "max-context is 5000, expected 1 to 4096"),
        (ExportOptions(draft_vocab=0), "draft-vocab is 0, expected 1 to 320"),
        (ExportOptions(draft_vocab=321), "draft-vocab is 321, expected 1 to 320"),
    ],
)
def test_options(options: ExportOptions, text: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(TrigraphError, match=text):
        export(source, tmp_path / "package", options)
    assert names(tmp_path) == set()


def test_draft_vocab_without_a_head(tmp_path: Path) -> None:
    path = write_random(tmp_path / "model.gguf", "qwen35", preset="nano", mtp=False)
    with pytest.raises(TrigraphError, match="no MTP head"):
        export(path, tmp_path / "package", ExportOptions(draft_vocab=10))


# A large file

_MEASURE = """
import resource, sys
from pathlib import Path
from trigraph.exporter import export
export(Path(sys.argv[1]), Path(sys.argv[2]))
status = Path("/proc/self/status")
if status.exists():  # getrusage counts the parent's memory before exec
    print(next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")))
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_export_of_ten_gigabytes(tmp_path: Path) -> None:
    """Memory and disk that an export takes do not follow the size of the model."""
    path = write_hollow("qwen3.6-35b-a3b", tmp_path / "model.gguf", layers=18)
    assert path.stat().st_size > 10e9
    run = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path), str(tmp_path / "package")],
        capture_output=True,
        text=True,
        check=True,
    )
    written = sum(file.stat().st_size for file in (tmp_path / "package").iterdir() if file.name != path.name)
    assert int(run.stdout) < 400_000, "KiB of memory"
    assert written < 20e6
