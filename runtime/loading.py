"""Opens packages, and exports GGUF files to a cache of packages first."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import trigraph.exporter as exporter
from trigraph.custom_ops import library_version
from trigraph.exporter import ExportOptions, Manifest
from trigraph.exporter.package.external import load_checked
from trigraph.exporter.package.manifest import CONTRACT_VERSION
from trigraph.exporter.package.paths import file_inside
from trigraph.models.errors import TrigraphError
from trigraph.models.progress import Progress, silent
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.device.choice import open_device
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.device.memory import explained_shortage
from trigraph.runtime.engine import Engine
from trigraph.runtime.execution.contract import check_contract
from trigraph.runtime.execution.sessions import SessionGraph, default_threads, open_session
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.state.sequence import StateLimits
from trigraph.runtime.state.state import State
from trigraph.runtime.text.template import ChatTemplate
from trigraph.runtime.text.tokenizer import Tokenizer

DEFAULT_CONTEXT = 32768
DEFAULT_CHUNK = 512
_WORKING_BYTES = 96 << 20  # of sessions, tokenizer and activations, roughly
_MAX_TEXT_BYTES = 256 << 20  # of a tokenizer; 30 MB are usual


def load(
    path: str | Path,
    *,
    threads: int | None = None,
    context: int | None = None,
    sequences: int = 2,
    chunk: int = DEFAULT_CHUNK,
    speculation: bool = True,
    options: ExportOptions | None = None,
    device: str = "cpu",
    experts: str = "gpu",
    progress: Progress = silent,
) -> Engine:
    """Loads a package folder, or a `.gguf` file, which is exported into the user's cache first, with `options`.

    `threads`: the physical cores unless given. `context`: most tokens of a text; unless given, what the package allows,
    but at most 32768. `sequences`: texts and forks that may hold state at once. `chunk`: tokens of a prompt computed in
    one step. `speculation` False leaves the draft graph out. `device`: cpu, cuda, or auto; `experts` cpu leaves
    routed experts to the CPU when the device is a GPU. Raises TrigraphError for what the user can put right.
    """
    path = Path(path)
    if threads is not None and threads < 1:
        raise TrigraphError(f"threads is {threads}; it must be 1 or more")
    folder = path if path.is_dir() else cached_package(path, options or ExportOptions(), progress)
    manifest = Manifest.read(folder)
    limits = _limits(manifest, context)
    place = open_device(device, manifest.portable, experts)
    if place.library is not None:
        manifest.check_library(library_version(place.name))
    state = State(manifest.state, limits, sequences, place, double_buffered=place.library is None)
    weights_folder = None if manifest.weights_folder is None else Path(manifest.weights_folder)
    threads = threads or default_threads()

    def graph(name: str) -> SessionGraph:
        path = folder / f"{name}.onnx"
        model = load_checked(path, weight_paths)
        changed = model if place.adapt(model) else None
        initializers = place.initializers(weights, path, model.graph)
        session = open_session(path, changed, initializers, weights_folder, threads, place)
        check_contract(session, path, manifest)
        return SessionGraph(name, session, place, state.buffers, limits.pages, weights)

    no_draft = None
    if "draft" not in manifest.graphs:
        no_draft = "off: the model has no MTP head"
    elif not speculation:
        no_draft = "off as asked"
    weight_paths = manifest.weight_paths(folder)
    needed = sum(file.bytes for file in manifest.weight_files) + _WORKING_BYTES
    with explained_shortage(f"{folder}: the model", needed, "close other programs"):
        weights = MappedWeights(weight_paths)
        draft = graph("draft") if no_draft is None else None
        steps = Steps(graph("prefill"), graph("verify"), draft, state, manifest.config.vocab, chunk)
    if "cpu" in (place.name, experts):  # a GPU has copies of its own
        weights.read_ahead()
    tokenizer = _tokenizer(folder, manifest)
    notices = manifest.notices
    if place.library is None:
        notices += ("the operator library is missing: the graphs run their function bodies, which are slow",)
    template = _template(folder, manifest, tokenizer)
    identity = ModelIdentity.of(manifest)
    return Engine(steps, tokenizer, template, notices, no_draft, place, weights=weights, identity=identity)


def cached_package(source: Path, options: ExportOptions, progress: Progress = silent) -> Path:
    """The folder of the package of a GGUF file in the user's cache, exported now unless that has been done.

    Weights are referenced, not linked: a link would keep the disk space of a model that the user deletes.
    """
    options = dataclasses.replace(options, weights="reference")
    files = [source, *([options.mtp] if options.mtp else [])]
    try:
        stamp = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    except OSError as error:
        raise TrigraphError(f"{error.filename}: cannot be read: {error.strerror}") from error
    choices = {name: str(value) for name, value in dataclasses.asdict(options).items()}
    identity = json.dumps([stamp[0][0], choices], sort_keys=True)
    entry = _cache_home() / f"{source.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    package, stamp_file = entry / "package", entry / "source.json"
    current = json.dumps([stamp, choices, CONTRACT_VERSION], sort_keys=True)
    if not _is_current(package, stamp_file, current):
        exporter.export(source, package, options, progress)
        with suppress(OSError):  # a package without a stamp is made anew the next time
            stamp_file.write_text(current, encoding="utf-8")
    return package


def _is_current(package: Path, stamp_file: Path, stamp: str) -> bool:
    """Whether the cached package was made of this very file; its manifest also knows the hash of the file's header."""
    try:
        if stamp_file.read_text(encoding="utf-8") != stamp:
            return False
        Manifest.read(package).check_library(library_version())
    except (OSError, TrigraphError):
        return False
    return True


def _cache_home() -> Path:
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home) / "trigraph"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "trigraph"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "trigraph"
    return Path.home() / ".cache" / "trigraph"


def _limits(manifest: Manifest, context: int | None) -> StateLimits:
    context = min(DEFAULT_CONTEXT, manifest.max_context) if context is None else context
    if not 1 <= context <= manifest.max_context:
        raise TrigraphError(f"context is {context}; the package was exported for 1 to {manifest.max_context} tokens")
    return StateLimits(context, manifest.page_size, manifest.max_pending, manifest.config.hidden)


def _tokenizer(folder: Path, manifest: Manifest) -> Tokenizer:
    special = manifest.special_tokens
    return Tokenizer(_read(folder, "tokenizer.json"), special.stop, special.bos if special.add_bos else None)


def _template(folder: Path, manifest: Manifest, tokenizer: Tokenizer) -> ChatTemplate | None:
    if not os.path.lexists(folder / "chat_template.jinja"):
        return None
    special = manifest.special_tokens
    ids = {"bos_token": special.bos, "eos_token": special.eos, "pad_token": special.pad}
    return ChatTemplate(
        _read(folder, "chat_template.jinja"),
        {name: tokenizer.text_of(token) for name, token in ids.items() if token is not None},
    )


def _read(folder: Path, name: str) -> str:
    path = file_inside(folder, name, _MAX_TEXT_BYTES)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrigraphError(f"{path}: cannot be read ({error}); export the package again") from error
