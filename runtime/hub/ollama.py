"""Models in Ollama's own folder, by the names that it knows them by: their files are read where they lie."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trigraph.models.architecture import ARCHITECTURES
from trigraph.models.errors import TrigraphError, quote

PREFIX = "ollama:"
_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"  # where a name does not say them
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_NAME = re.compile(
    rf"ollama:/{{0,2}}(?:(?:(?P<host>{_PART})/)?(?P<namespace>{_PART})/)?(?P<model>{_PART})(?::(?P<tag>{_PART}))?",
    re.ASCII,
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LAYER = "application/vnd.ollama.image."
_LONGEST_MANIFEST = 1 << 20
_SERVICE_FOLDERS = ("/usr/share/ollama/.ollama/models", "/var/lib/ollama/.ollama/models", "/var/lib/ollama")
_MOST_NAMES = 8


@dataclass(frozen=True)
class OllamaName:
    """A model as `ollama list` shows it."""

    model: str
    tag: str = _TAG
    namespace: str = _NAMESPACE
    host: str = _HOST

    def __str__(self) -> str:
        short = f"{self.model}:{self.tag}"
        if self.host != _HOST:
            return f"{self.host}/{self.namespace}/{short}"
        return short if self.namespace == _NAMESPACE else f"{self.namespace}/{short}"

    @classmethod
    def parse(cls, text: str) -> OllamaName:
        """`ollama:` and a name, with or without a tag, a namespace and a host. Raises TrigraphError."""
        if (match := _NAME.fullmatch(text)) is None:
            raise TrigraphError(f"{text}: write ollama:NAME or ollama:NAME:TAG, such as ollama:qwen3.5:9b")
        return cls(match["model"], match["tag"] or _TAG, match["namespace"] or _NAMESPACE, match["host"] or _HOST)


@dataclass(frozen=True)
class OllamaModel:
    """The files of a model."""

    path: Path
    projector: Path | None
    """Its vision tower, if that is a file of its own."""
    family: str | None
    """Its architecture, as far as Ollama has noted it."""

    @property
    def bytes(self) -> int:
        """The size of its files."""
        return sum(file.stat().st_size for file in (self.path, self.projector) if file is not None)


def find(name: OllamaName) -> OllamaModel:
    """The files of a model that Ollama has pulled. Raises TrigraphError where there is none, or none for trigraph."""
    folders = _folders()
    for folder in folders:
        manifest = folder / "manifests" / name.host / name.namespace / name.model / name.tag
        if manifest.is_file():
            model = _read(manifest, folder, name)
            if model.family is not None and model.family not in ARCHITECTURES:
                raise TrigraphError(
                    f"{PREFIX}{name}: is a model of architecture {quote(model.family)}, which is not supported; "
                    f"use one of {', '.join(ARCHITECTURES)}"
                )
            return model
    if not folders:
        raise TrigraphError(
            f"{PREFIX}{name}: Ollama has no folder of models here; set OLLAMA_MODELS to it if it is elsewhere"
        )
    others = sorted(str(other) for other in stored())
    shown = ", ".join(others[:_MOST_NAMES]) + (", .." if len(others) > _MOST_NAMES else "")
    raise TrigraphError(
        f"{PREFIX}{name}: is not in {folders[0]}"
        + (f", which has {shown} for trigraph" if others else "")
        + f"; run 'ollama pull {name}'"
    )


def stored() -> dict[OllamaName, OllamaModel]:
    """The models of supported architectures that Ollama has pulled."""
    models_by_name: dict[OllamaName, OllamaModel] = {}
    for folder in _folders():
        for manifest in sorted((folder / "manifests").glob("*/*/*/*")):
            host, namespace, model, tag = manifest.parts[-4:]
            name = OllamaName(model, tag, namespace, host)
            with suppress(TrigraphError):
                if (read := _read(manifest, folder, name)).family in ARCHITECTURES:
                    models_by_name.setdefault(name, read)
    return models_by_name


def _folders() -> list[Path]:
    """Where Ollama keeps models: the folder that is named, or the user's and those of a service."""
    if named := os.environ.get("OLLAMA_MODELS"):
        return [Path(named)]
    usual = [os.path.expanduser("~/.ollama/models"), *(_SERVICE_FOLDERS if sys.platform == "linux" else ())]
    return [path for path in map(Path, usual) if (path / "manifests").is_dir()]


def _read(manifest: Path, folder: Path, name: OllamaName) -> OllamaModel:
    content = _object(manifest, name)
    layers: dict[str, list[Any]] = {}
    for layer in _layers(content, manifest, name):
        layers.setdefault(str(layer.get("mediaType")).removeprefix(_LAYER), []).append(layer)
    family, form = _family(content.get("config"), folder)
    if form not in (None, "gguf") or "tensor" in layers:
        raise TrigraphError(f"{PREFIX}{name}: is not a GGUF file but {quote(form or 'safetensors')}; pull another tag")
    if "adapter" in layers:
        raise TrigraphError(f"{PREFIX}{name}: has an adapter, which is not supported; merge it into the model")
    models, projectors = layers.get("model", []), layers.get("projector", [])
    if len(models) != 1 or len(projectors) > 1:
        counted = f"{len(models)} model files and {len(projectors)} projectors"
        raise TrigraphError(f"{PREFIX}{name}: has {counted} in {manifest}, expected one model; pull another tag")
    projector = _blob(projectors[0], folder, name) if projectors else None
    return OllamaModel(_blob(models[0], folder, name), projector, family)


def _layers(content: dict[str, Any], manifest: Path, name: OllamaName) -> Iterator[dict[str, Any]]:
    layers = content.get("layers")
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        raise _damaged(manifest, name, f"'layers' is {quote(layers)}")
    yield from layers


def _family(config: Any, folder: Path) -> tuple[str | None, str | None]:
    """Architecture and file format, as the configuration that a manifest points to says; None where it does not."""
    if not isinstance(config, dict) or not _DIGEST.fullmatch(str(config.get("digest"))):
        return None, None
    path = folder / "blobs" / config["digest"].replace(":", "-")
    try:
        content = json.loads(path.read_bytes()[:_LONGEST_MANIFEST])
    except (OSError, ValueError):
        return None, None
    values = (
        [content.get(key) for key in ("model_family", "model_format")] if isinstance(content, dict) else [None, None]
    )
    family, form = (value if isinstance(value, str) and value else None for value in values)
    return family, form


def _blob(layer: dict[str, Any], folder: Path, name: OllamaName) -> Path:
    """The file of a layer, which is there and complete."""
    digest, size = layer.get("digest"), layer.get("size")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise TrigraphError(f"{PREFIX}{name}: the digest of a layer is {quote(digest)}; {_again(name)}")
    blob = folder / "blobs" / digest.replace(":", "-")
    try:
        found = blob.stat().st_size
    except OSError as error:
        raise TrigraphError(f"{PREFIX}{name}: {blob} cannot be read: {error.strerror}; {_again(name)}") from error
    if isinstance(size, int) and size != found:
        raise TrigraphError(f"{PREFIX}{name}: {blob} has {found} bytes of {size}; {_again(name)}")
    return blob


def _object(manifest: Path, name: OllamaName) -> dict[str, Any]:
    try:
        with open(manifest, "rb") as file:
            content = json.loads(file.read(_LONGEST_MANIFEST))
    except OSError as error:
        raise TrigraphError(f"{PREFIX}{name}: {manifest} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _damaged(manifest, name, "it is not JSON") from error
    if not isinstance(content, dict):
        raise _damaged(manifest, name, f"it is {quote(content)}")
    return content


def _damaged(manifest: Path, name: OllamaName, found: str) -> TrigraphError:
    return TrigraphError(f"{PREFIX}{name}: {manifest} is damaged: {found}; {_again(name)}")


def _again(name: OllamaName) -> str:
    return f"run 'ollama pull {name}' again"
