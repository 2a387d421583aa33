"""Packages on disk: weights by link, copy or reference, what is converted, options, and what an export takes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from gguf import GGMLQuantizationType, quants

from support.models.hollow import write_hollow
from support.models.packages import FILES, names
from support.models.random_gguf import HALF_NORMS, Item, with_half_norms, write_random
from trigraph.exporter import ExportOptions, describe, export, read_manifest
from trigraph.models.errors import TrigraphError
from trigraph.models.model import open_model
from trigraph.models.synth import write_synthetic, write_synthetic_drafter, write_synthetic_mmproj
from trigraph.runtime.engine.package_cache import cached_package


def test_link(nano_gguf: Path, tmp_path: Path) -> None:
    manifest = export(nano_gguf, tmp_path / "package")
    assert names(tmp_path) == {"package"}
    assert names(tmp_path / "package") == FILES | {"model.gguf"}
    assert (tmp_path / "package/model.gguf").samefile(nano_gguf)
    assert read_manifest(tmp_path / "package") == manifest
    assert manifest.weight_paths(tmp_path / "package") == {"model.gguf": tmp_path / "package/model.gguf"}


def test_link_through_a_symbolic_link(nano_gguf: Path, tmp_path: Path) -> None:
    """Model caches hold symbolic links; the package gets the file itself."""
    (tmp_path / "named.gguf").symlink_to(nano_gguf)
    export(tmp_path / "named.gguf", tmp_path / "package")
    linked = tmp_path / "package/named.gguf"
    assert linked.samefile(nano_gguf) and not linked.is_symlink()


def test_copy(nano_gguf: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    export(nano_gguf, tmp_path / "package", ExportOptions(weights="copy"), lambda *step: seen.append(step))
    copied = tmp_path / "package/model.gguf"
    assert not copied.samefile(nano_gguf) and copied.read_bytes() == nano_gguf.read_bytes()
    assert seen[-1] == ("copy", nano_gguf.stat().st_size, nano_gguf.stat().st_size)


def test_reference_with_converted_weights(tmp_path: Path, operator_library: Path) -> None:
    """The GGUF stays where it is; the side file, in the package, is found from the same folder."""
    (tmp_path / "models").mkdir()
    path = tmp_path / "models/model.gguf"
    model = write_random(path, "qwen35", preset="blocks", types=HALF_NORMS, edit=with_half_norms)
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


def test_reference_from_the_root(nano_gguf: Path, tmp_path: Path, operator_library: Path) -> None:
    """The deepest common folder may be the root of the file system."""
    manifest = export(nano_gguf, tmp_path / "package", ExportOptions(weights="reference"))
    location = nano_gguf.resolve().relative_to("/").as_posix()
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

    def link(nano_gguf: Path, target: Path) -> None:
        if Path(nano_gguf).name == "head.gguf":
            raise OSError(number, os.strerror(number))
        original(nano_gguf, target)

    with patch.object(os, "link", link):
        manifest = export(trunk, tmp_path / "package", ExportOptions(mtp=head))
    assert manifest.weights_folder == str(tmp_path)
    assert names(tmp_path / "package") == FILES
    assert trunk.stat().st_nlink == 1
    assert read_manifest(tmp_path / "package") == manifest


def test_weights_in_the_package_cannot_be_referenced(tmp_path: Path, nano_gguf: Path) -> None:
    """Where they cannot be linked into the new package either, they would be lost with the old one."""
    export(nano_gguf, tmp_path / "package", ExportOptions(weights="copy"))
    inside = tmp_path / "package/model.gguf"
    before = inside.read_bytes()
    with (
        patch.object(os, "link", side_effect=OSError(errno.EPERM, os.strerror(errno.EPERM))),
        pytest.raises(TrigraphError, match=r"package: holds model\.gguf, which the package would refer to"),
    ):
        export(inside, tmp_path / "package")
    assert names(tmp_path) == {"package"} and inside.read_bytes() == before


@pytest.mark.slow
def test_another_file_system(nano_gguf: Path, tmp_path: Path) -> None:
    """The real thing, by the command: it says what it did."""
    if not os.access("/dev/shm", os.W_OK) or os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one file system only")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        out = Path(folder) / "package"
        command = [sys.executable, "-m", "trigraph.runtime", "export", str(nano_gguf), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr.startswith(f"note: {nano_gguf} cannot be hard-linked into {out}, which refers to it instead")
        assert read_manifest(out).weights_folder == "/"


def test_a_link_that_fails_for_another_reason(nano_gguf: Path, tmp_path: Path) -> None:
    with (
        patch.object(os, "link", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
        pytest.raises(TrigraphError, match="cannot be written: No space left"),
    ):
        export(nano_gguf, tmp_path / "package")
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


@pytest.mark.parametrize("weights", ["link", "copy"])
def test_three_files_of_one_name(tmp_path: Path, weights: str) -> None:
    """A model, its vision tower and its drafter, each in a folder of its own."""
    model, tower, drafter = (tmp_path / folder / "model.gguf" for folder in ("model", "tower", "drafter"))
    for file in (model, tower, drafter):
        file.parent.mkdir()
    write_synthetic("tiny-dense", model, quant="Q8_0")
    write_synthetic_mmproj("mmproj-tiny-dense", tower)
    write_synthetic_drafter("dspark-tiny-dense", drafter)
    export(model, tmp_path / "package", ExportOptions(mmproj=tower, draft_model=drafter, weights=weights))
    manifest = read_manifest(tmp_path / "package")  # which sees to the sizes of the files
    assert len({file.location for file in manifest.weight_files if file.location.endswith(".gguf")}) == 3


def test_an_mtp_file_beside_the_model_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that of another model nor a damaged one is; a head of the model's own file comes first."""
    trunk = write_random(tmp_path / "model.gguf", "qwen35", preset="nano", mtp=False)
    write_random(tmp_path / "mtp-another.gguf", "qwen35moe", preset="nano", mtp="only")
    (tmp_path / "mtp-damaged.gguf").write_bytes(b"GGUF")
    assert "draft" not in export(trunk, tmp_path / "without").graphs
    head = write_random(tmp_path / "mtp-model.gguf", "qwen35", preset="nano", mtp="only")
    manifest = export(trunk, tmp_path / "with")
    assert "draft" in manifest.graphs
    assert {file.location for file in manifest.weight_files} == {trunk.name, head.name}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "draft" in read_manifest(cached_package(trunk, ExportOptions()).folder).graphs
    whole = write_random(tmp_path / "whole.gguf", "qwen35", preset="nano")
    assert [file.location for file in export(whole, tmp_path / "whole").weight_files] == [whole.name]


def test_what_no_kernel_reads_is_converted(tmp_path: Path) -> None:
    """Experts with a factor before silu become Q8_0, which has it, and vectors F32; graphs point to the copies."""

    def edited(item: Item) -> list[Item]:
        factors = Item(item.name.replace("weight", "scale"), item.shape[:1], "norm")
        return [*with_half_norms(item), *[factors] * ("ffn_gate_exps" in item.name)]

    types = {"*ffn_gate_exps*": "NVFP4", **HALF_NORMS}
    path = write_random(tmp_path / "model.gguf", "qwen35moe", preset="blocks", types=types, edit=edited)
    seen: list[tuple[str, int, int]] = []
    manifest = export(path, tmp_path / "package", ExportOptions(), lambda *step: seen.append(step))
    assert any("NVFP4" in notice and "Q8_0" in notice for notice in manifest.notices)
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
    assert converted == {"NVFP4", "F16"}
    (attribute,) = (
        attribute.s
        for node in graph.node
        if node.op_type == "GroupedExpertFFN" and node.name.startswith("blk.0.")
        for attribute in node.attribute
        if attribute.name == "gate_type"
    )
    assert attribute == b"Q8_0"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (ExportOptions(kv_type="q4_0"), "kv_type is 'q4_0', expected one of f16, f32, q8_0"),
        (ExportOptions(activations="int4"), "activations is 'int4'"),
        (ExportOptions(weights="move"), "weights is 'move'"),
        (ExportOptions(max_context=0), "max_context is 0, expected 1 to 4096"),
        (ExportOptions(max_context=5000), "max_context is 5000, expected 1 to 4096"),
        (ExportOptions(draft_vocab=0), "draft_vocab is 0, expected 1 to 320"),
        (ExportOptions(draft_vocab=321), "draft_vocab is 321, expected 1 to 320"),
    ],
)
def test_options(options: ExportOptions, text: str, nano_gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(TrigraphError, match=text):
        export(nano_gguf, tmp_path / "package", options)
    assert names(tmp_path) == set()


def test_draft_vocab_without_a_head(tmp_path: Path) -> None:
    path = write_random(tmp_path / "model.gguf", "qwen35", preset="nano", mtp=False)
    with pytest.raises(TrigraphError, match="no MTP head"):
        export(path, tmp_path / "package", ExportOptions(draft_vocab=10))


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


@pytest.mark.slow
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
