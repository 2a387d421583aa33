"""Models in Ollama's folder, found by name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from support.command import assert_one_line_error, run_command
from support.models.ollama_files import as_published
from support.models.random_gguf import write_random
from trigraph.models.errors import TrigraphError
from trigraph.models.synth import write_synthetic, write_synthetic_mmproj
from trigraph.runtime.hub.ollama import OllamaName, find, stored


class Folder:
    """A folder as `ollama pull` fills it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "blobs").mkdir(parents=True)

    def blob(self, content: bytes) -> dict[str, Any]:
        """Stores a file; what a manifest says of it."""
        digest = hashlib.sha256(content).hexdigest()
        (self.root / "blobs" / f"sha256-{digest}").write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    def path(self, layer: dict[str, Any]) -> Path:
        return self.root / "blobs" / str(layer["digest"]).replace(":", "-")

    def add(self, name: str, family: str = "qwen35", **layers: bytes) -> dict[str, dict[str, Any]]:
        """Adds a model, such as `registry.ollama.ai/library/qwen3.5/9b`; what its manifest says of the layers."""
        config = self.blob(json.dumps({"model_format": "gguf", "model_family": family}).encode())
        stored = {kind: self.blob(content) for kind, content in layers.items()}
        listed = [{"mediaType": f"application/vnd.ollama.image.{kind}"} | layer for kind, layer in stored.items()]
        self.write(name, {"schemaVersion": 2, "config": config, "layers": listed})
        return stored

    def write(self, name: str, manifest: Any) -> Path:
        path = self.root / "manifests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(manifest if isinstance(manifest, str) else json.dumps(manifest))
        return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    return Folder(tmp_path / "models")


LIBRARY = "registry.ollama.ai/library"


@pytest.mark.parametrize(
    ("text", "path", "shown"),
    [
        ("ollama:qwen3.5", f"{LIBRARY}/qwen3.5/latest", "qwen3.5:latest"),
        ("ollama:qwen3.5:9b", f"{LIBRARY}/qwen3.5/9b", "qwen3.5:9b"),
        ("ollama:/qwen3.5:9b-q4_K_M", f"{LIBRARY}/qwen3.5/9b-q4_K_M", "qwen3.5:9b-q4_K_M"),
        ("ollama:somebody/own:v1", "registry.ollama.ai/somebody/own/v1", "somebody/own:v1"),
        ("ollama:hf.co/unsloth/Qwen3.5-4B-GGUF:Q4_K_M", "hf.co/unsloth/Qwen3.5-4B-GGUF/Q4_K_M", None),
    ],
)
def test_names(folder: Folder, text: str, path: str, shown: str | None) -> None:
    layers = folder.add(path, model=b"weights", template=b"{{ .Prompt }}", license=b"MIT", params=b"{}")
    name = OllamaName.parse(text)
    assert str(name) == (shown or text.removeprefix("ollama:"))
    found = find(name)
    assert (found.path, found.projector, found.family) == (folder.path(layers["model"]), None, "qwen35")
    assert stored() == {name: found} and found.bytes == len(b"weights")


def test_a_projector_is_the_vision_tower(folder: Folder) -> None:
    layers = folder.add(f"{LIBRARY}/qwen3.5/latest", model=b"weights", projector=b"tower")
    assert find(OllamaName("qwen3.5")).projector == folder.path(layers["projector"])


@pytest.mark.parametrize(
    "text", ["ollama:", "ollama:a b", "ollama:../../x", "ollama:a/b/c/d", "ollama:.a", "ollama:a:"]
)
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(TrigraphError, match="write ollama:NAME"):
        OllamaName.parse(text)


def check_refused(*words: str) -> None:
    with pytest.raises(TrigraphError) as caught:
        find(OllamaName("qwen3.5"))
    text = str(caught.value)
    assert text.startswith("ollama:qwen3.5:latest: ") and "\n" not in text and len(text) < 900
    for word in words:
        assert word in text, text


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ("", ["is damaged: it is not JSON", "run 'ollama pull qwen3.5:latest' again"]),
        ("{" * 100_000, ["is damaged"]),
        ("[" * 100_000, ["is damaged"]),
        ("[1]", ["is damaged: it is [1]"]),
        ({}, ["'layers' is None"]),
        ({"layers": 5}, ["'layers' is 5"]),
        ({"layers": [5]}, ["'layers' is [5]"]),
        ({"layers": []}, ["has 0 model files"]),
        ({"layers": [{"mediaType": "application/vnd.ollama.image.model"}]}, ["the digest of a layer is None"]),
        (
            {"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../etc/passwd"}]},
            ["the digest of a layer is 'sha256:../../etc/passwd'"],
        ),
        (
            {"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'0' * 64}"}]},
            [f"sha256-{'0' * 64} cannot be read: No such file", "again"],
        ),
        ({"layers": [{"mediaType": "application/vnd.ollama.image.tensor"}]}, ["is not a GGUF file but 'safetensors'"]),
        ({"layers": [{"mediaType": "application/vnd.ollama.image.adapter"}]}, ["has an adapter"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_damaged_manifests(folder: Folder, manifest: Any, words: list[str]) -> None:
    folder.write(f"{LIBRARY}/qwen3.5/latest", manifest)
    check_refused(*words)
    assert stored() == {}


def test_incomplete_and_foreign_models(folder: Folder) -> None:
    layers = folder.add(f"{LIBRARY}/qwen3.5/latest", model=b"weights")
    folder.path(layers["model"]).write_bytes(b"weig")
    check_refused("has 4 bytes of 7")
    folder.add(f"{LIBRARY}/qwen3.5/latest", family="llama", model=b"weights")
    check_refused("architecture 'llama', which is not supported", "qwen35moe")


def test_what_is_not_there(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    check_refused(f"is not in {folder.root}; run 'ollama pull qwen3.5:latest'")
    for n in range(9):
        folder.add(f"{LIBRARY}/qwen3.5/{n}b", model=b"%d" % n)
    folder.add(f"{LIBRARY}/llama3/8b", family="llama", model=b"other")
    check_refused("which has qwen3.5:0b, qwen3.5:1b", "qwen3.5:7b, .. for trigraph")
    monkeypatch.delenv("OLLAMA_MODELS")
    monkeypatch.setenv("HOME", str(folder.root))
    monkeypatch.setattr("trigraph.runtime.hub.ollama._SERVICE_FOLDERS", ())
    check_refused("set OLLAMA_MODELS")
    (folder.root / ".ollama").mkdir()
    (folder.root / ".ollama" / "models").symlink_to(folder.root)
    assert find(OllamaName("qwen3.5", "3b")).path.read_bytes() == b"3"


@pytest.mark.slow
def test_commands(folder: Folder, tmp_path: Path) -> None:
    """`inspect` shows where the file lies, `run` runs it, `models` lists it, and leaves removing it to Ollama."""
    source = write_random(tmp_path / "a.gguf", "qwen35", preset="nano")
    layers = folder.add(f"{LIBRARY}/qwen3.5/latest", model=as_published(source, tmp_path / "b.gguf").read_bytes())
    path = str(folder.path(layers["model"]))
    assert json.loads(run_command("inspect", "ollama:qwen3.5", "--json").out)["path"] == path
    options = ("-p", "the fox", "-n", 4, "--temp", 0, "--raw")
    ran, expected = run_command("run", "ollama:qwen3.5", *options), run_command("run", source, *options)
    assert (ran.status, ran.out) == (0, expected.out)
    assert "ollama:qwen3.5:latest" in run_command("models").out
    listed = json.loads(run_command("models", "--json").out)["ollama"]
    assert listed == [{"name": "ollama:qwen3.5:latest", "file": path, "bytes": layers["model"]["size"]}]
    assert_one_line_error(run_command("models", "rm", "ollama:qwen3.5"), "ollama rm qwen3.5")

    write_synthetic("tiny-moe", tmp_path / "c.gguf")
    write_synthetic_mmproj("mmproj-tiny-moe", tmp_path / "tower.gguf")
    apart = folder.add(
        f"{LIBRARY}/own/latest",
        model=(tmp_path / "c.gguf").read_bytes(),
        projector=(tmp_path / "tower.gguf").read_bytes(),
    )
    seen = json.loads(run_command("inspect", "ollama:own", "--json").out)["vision"]
    assert seen["path"] == str(folder.path(apart["projector"]))
