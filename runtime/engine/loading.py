"""Opens packages."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar, Unpack

from trigraph.custom_ops import library_version
from trigraph.exporter import ExportOptions, Manifest, read_manifest
from trigraph.exporter.package.external import load_graph
from trigraph.exporter.package.manifest import EXPERT_COUNTS
from trigraph.models.checks import check
from trigraph.models.errors import TrigraphError, named, quote
from trigraph.models.progress import Progress, silent
from trigraph.runtime.cache.disk_tier import DiskTier
from trigraph.runtime.cache.identity import ModelIdentity, tower_sha256
from trigraph.runtime.device.device import Device
from trigraph.runtime.device.mapped_weights import MappedWeights, table_bytes
from trigraph.runtime.device.memory import explained_shortage
from trigraph.runtime.engine.config import REPACK, EngineConfig, Settings, configured
from trigraph.runtime.engine.engine import Engine
from trigraph.runtime.engine.package_cache import CachedPackage, cached_package
from trigraph.runtime.engine.state_plan import WORKING_BYTES, device_bytes, plan_state
from trigraph.runtime.engine.texts import read_texts
from trigraph.runtime.execution.package_graphs import PackageGraphs, load_graphs
from trigraph.runtime.execution.parts import Memories, Part, state_device
from trigraph.runtime.execution.pending import with_pending
from trigraph.runtime.execution.prefill_speed import PrefillSpeed
from trigraph.runtime.execution.repacking import Repacking, begin_repacking
from trigraph.runtime.execution.sessions import Graph
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.execution.threads import choose_threads
from trigraph.runtime.execution.vision import Vision
from trigraph.runtime.hub.given import located
from trigraph.runtime.images.limits import ImageLimits
from trigraph.runtime.requests.draft_length import OFF
from trigraph.runtime.sampling.sampling import Sampling
from trigraph.runtime.scheduler.model import Model, Scheduling
from trigraph.runtime.state.sequence import StateLimits
from trigraph.runtime.state.state import State

_T = TypeVar("_T")


def load(
    path: str | Path,
    config: EngineConfig | None = None,
    *,
    progress: Progress = silent,
    **settings: Unpack[Settings],
) -> Engine:
    """Loads a package folder, or a `.gguf` file, which is exported into the user's cache first.

    In place of a path there may be a name, as on the command line: "USER/REPO:QUANT" of Hugging Face, which is
    downloaded once, "ollama:NAME", or "tiny". `settings`: fields of EngineConfig, in place of those of `config`. Raises
    TrigraphError for what the user can put right.
    """
    config = configured(config, settings)
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise TrigraphError(
            f"the model is {quote(path)}; give a .gguf file, a package, or a name such as USER/REPO:QUANT"
        )
    given = located(Path(path), progress)
    if os.path.isdir(given.path):
        if config.draft_model is not None:
            raise TrigraphError(f"{given.path}: is a package; draft_model is for the export of a .gguf file")
        if config.options not in (None, ExportOptions()):
            raise TrigraphError(f"{given.path}: is a package; options are for the export of a .gguf file")
        return Engine(_model(CachedPackage(given.path), config, progress))
    exported = config.options or ExportOptions()
    drafter = exported.draft_model if config.draft_model is None else Path(config.draft_model)
    companions = given.companions(exported.mtp, exported.mmproj, drafter, progress)
    exported = replace(exported, **companions._asdict())
    package = cached_package(given.path, exported, progress)
    if given.notice is not None:
        package = replace(package, notices=(given.notice, *package.notices))
    return Engine(_model(package, config, progress))


def _model(package: CachedPackage, config: EngineConfig, progress: Progress) -> Model:
    scheduling = Scheduling(config.max_waiting, config.prefill_ms)
    check("repack", config.repack, str, REPACK.__contains__, f"one of {', '.join(REPACK)}")
    manifest = read_manifest(folder := package.folder)
    texts = _in_background(lambda: read_texts(folder, manifest))  # a large vocabulary takes half a second
    weight_bytes = sum(file.bytes for file in manifest.weight_files) - _bytes_on_disk(folder, manifest)
    threads, capped = choose_threads(config.threads, weight_bytes)
    memories = Memories.of(config.device, config.gpu_memory, config.split, config.experts, portable=manifest.portable)
    manifest = with_pending(manifest, config.max_pending, memories.devices[0].most_pending)
    memories = memories.holding(partial(device_bytes, manifest, config, weight_bytes))
    *_, device = memories.devices
    if manifest.drafter is not None and device.arithmetic:
        raise TrigraphError(f"block drafters do not run on {device.name}; use device=cpu, or leave the drafter out")
    if device.library is not None:
        manifest.check_library(library_version(device.operators))
    no_draft = _no_draft(manifest, config.speculation)
    needed = weight_bytes + WORKING_BYTES
    limits, sizes = plan_state(manifest, config, memories, weight_bytes)
    enough_memory = partial(explained_shortage, f"{folder}: the model", needed, "close other programs")
    with enough_memory():
        weights = MappedWeights(manifest.weight_paths(folder))
        models = partial(load_graphs, folder, manifest, _graph_names(manifest, no_draft))
        state_bytes, counts = sizes.nbytes(manifest.state), folder / EXPERT_COUNTS
        repacked = config.repack == "on"
        parts, placed = memories.parts(weights, threads, models, state_bytes, counts, repacked=repacked)
        graphs = PackageGraphs(folder, manifest, parts, threads, progress)
    devices = {tensor.name: state_device(parts, tensor.name) for tensor in manifest.state}
    state = State(manifest.state, limits, sizes, devices, double_buffered=device.library is None)
    with enough_memory():
        chunk = min((part.chunk for part in parts if not part.device.is_host), default=device.chunk)
        steps = _steps(graphs, state, chunk if config.chunk is None else config.chunk, draft=no_draft is None)
    if _reads_all(parts):
        weights.read_ahead()
    tokenizer, template = texts()
    identity, prefill_speed = ModelIdentity.of(manifest, device.arithmetic), PrefillSpeed()
    layout, repacking = _repacking(graphs, steps, weight_bytes, config)
    return Model(
        steps=steps,
        tokenizer=tokenizer,
        template=template,
        notices=(
            *package.notices,
            *manifest.notices,
            *placed,
            *_notices(device, capped),
            *_shorter(limits, manifest, config),
        ),
        no_draft=no_draft,
        device=device,
        layout=layout,
        repacking=repacking,
        scheduling=scheduling,
        prefill_speed=prefill_speed,
        weights=weights,
        identity=identity,
        sampling=_sampling(folder, manifest),
        vision=_vision(graphs, config.image_memory),
        image_limits=ImageLimits(config.image_tokens),
        disk=_disk(config.cache_dir, config.cache_size, identity, steps, prefill_speed),
    )


def _reads_all(parts: Sequence[Part]) -> bool:
    """Whether steps read all over the mapped files, not only the layers that the CPU computes ahead of GPUs."""
    *_, last = parts
    return any(part.source.reads_mapped and (part is last or not part.device.is_host) for part in parts)


def _bytes_on_disk(folder: Path, manifest: Manifest) -> int:
    """What of the weights takes no memory: a table of n-grams, of which steps read a few rows."""
    return table_bytes(load_graph(folder / "verify.onnx").graph) if manifest.config.streams is not None else 0


def _sampling(folder: Path, manifest: Manifest) -> Sampling:
    with named(f"{folder}: general.sampling of the model's file cannot be used"):
        return Sampling(**manifest.sampling.given())


def _vision(graphs: PackageGraphs, budget: int) -> Vision | None:
    images = graphs.manifest.images
    if images is None:
        return None
    apart = graphs.last.device.is_host
    return Vision(images.tower, tower_sha256(graphs.manifest), graphs.open_tower, budget, apart=apart)


def _disk(
    folder: str | Path | None, size: int | None, identity: ModelIdentity, steps: Steps, prefill_speed: PrefillSpeed
) -> DiskTier | None:
    if folder is None and size is not None:
        raise TrigraphError("cache_size needs a cache_dir")
    return None if folder is None else DiskTier(Path(folder), size, identity, steps, prefill_speed)


def _notices(device: Device, capped: str | None) -> list[str]:
    found = [] if capped is None else [capped]
    if device.library is None:
        found.append("the operator library is missing: the graphs run their function bodies, which are slow")
    return found


def _shorter(limits: StateLimits, manifest: Manifest, config: EngineConfig) -> list[str]:
    """Says that the context is not the model's own, where nobody asked for that."""
    if config.context is not None or limits.context == manifest.max_context:
        return []
    return [f"context {limits.context:,} of {manifest.max_context:,}: what memory allows; context=0 asks for all"]


def _no_draft(manifest: Manifest, speculation: bool) -> str | None:
    """Why there will be no draft graph; None when there will."""
    if not {"draft", "block"} & {*manifest.graphs}:
        return "the model has no MTP head"
    return None if speculation else OFF


def _graph_names(manifest: Manifest, no_draft: str | None) -> list[str]:
    """The names of all graphs that the engine may open."""
    wanted = {"draft": no_draft is None, "block": no_draft is None, "vision": True}
    return ["prefill", "verify", *(name for name, opened in wanted.items() if opened and name in manifest.graphs)]


def _steps(graphs: PackageGraphs, state: State, chunk: int, *, draft: bool) -> Steps:
    """The steps of the graphs; without `draft` they have none."""
    manifest = graphs.manifest

    def opened(name: str) -> Graph:
        return graphs.open(graphs.prepare(name), state)

    prefill, verify = opened("prefill"), opened("verify")  # first: see RepackedWeights.copies
    drafts, blocks = (opened(name) if draft and name in manifest.graphs else None for name in ("draft", "block"))
    config = manifest.config
    ngrams = None if config.streams is None else config.streams.ngrams
    start = 0 if ngrams is None else ngrams.eos
    return Steps(prefill, verify, drafts, state, config.vocab, chunk, start, blocks, manifest.drafter)


def _repacking(
    graphs: PackageGraphs, steps: Steps, weight_bytes: int, config: EngineConfig
) -> tuple[str, Repacking | None]:
    """How the weights lie, and what changes that in the background."""
    if config.repack != "auto":
        return "repacked" if config.repack == "on" else "plain", None
    begun = begin_repacking(graphs, steps, weight_bytes, config.memory_share)
    return (begun, None) if isinstance(begun, str) else ("", begun)


def _in_background(function: Callable[[], _T]) -> Callable[[], _T]:
    """What gives the function's result, once. A future that the caller holds would hold the caller by its error."""
    executor = ThreadPoolExecutor(1)
    futures = [executor.submit(function)]
    executor.shutdown(wait=False)
    return lambda: futures.pop().result()
