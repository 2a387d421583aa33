"""From a GGUF file to a package: its graphs, a manifest, the tokenizer, and the weights by reference."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trigraph.custom_ops import DOMAIN, library_version
from trigraph.exporter.options import ExportOptions
from trigraph.exporter.package.folder import check_target, staged
from trigraph.exporter.package.manifest import (
    SIDE_FILE,
    ImageInput,
    Manifest,
    OperatorLibrary,
    WeightFile,
    features_of,
)
from trigraph.exporter.package.state_tensors import MAX_PENDING, PAGE_SIZE, StateTensor, state_tensors
from trigraph.exporter.placement import copy, place
from trigraph.exporter.sources import Sources
from trigraph.models.errors import named, one_line
from trigraph.models.model import Model
from trigraph.models.progress import Progress, silent
from trigraph.models.rope_positions import rope_sections
from trigraph.models.sampling import SuggestedSampling, suggested_sampling
from trigraph.models.tokenizer import SpecialTokens, chat_template, special_tokens, tokenizer_json
from trigraph.models.vision.tower import Tower

# What imports onnx_ir waits for an export to be made: that takes half a second, more than all the rest of a start.
if TYPE_CHECKING:
    from trigraph.exporter.graphs.network import Network
    from trigraph.exporter.graphs.weights import Weights

TOWER_ACTIVATIONS = "float32"
DRAFT_VOCAB = 65536
"""Token ids that a draft chooses from: low ids are the frequent merges, and a draft reads a row of weights for each."""
_SIDE_HEADER_BYTES = 1 << 16
_DEFAULTS = ExportOptions()


def export(
    source: Path,
    out: Path,
    options: ExportOptions = _DEFAULTS,
    progress: Progress = silent,
    *,
    replace: bool = True,
) -> Manifest:
    """Write the package of a model to the folder `out`; with `replace`, in the place of a package that is there.

    Of tensor data a sample is read, and all of types that no kernel reads; those are converted and named in the
    manifest's notices. Raises TrigraphError, and leaves nothing behind, when the model or an option is unusable or the
    folder cannot be written.
    """
    from trigraph.exporter.graphs.weights import Joined, Weights

    source, out = Path(source), Path(os.path.abspath(out))
    sources = Sources.open(source, options)
    model, tower, drafter = sources.model, sources.tower, sources.drafter
    notices = model.notices + sources.unusable + (_portable_notices(model, options) if options.portable else ())
    files = sources.weight_files
    check_target(out, list(files), replace=replace)
    draft_vocab = _draft_vocab(sources, options)
    with named(source):
        tokenizer, template, special, sampling = _texts(model.file.metadata)
    with staged(out, replace=replace) as folder:
        placement = place(list(files), out, folder, options.weights)
        weights = Weights(Joined(model, sources.parts), placement.locations, placement.side_location)
        graphs = _write_graphs(folder, sources, weights, options, draft_vocab)
        if options.weights == "copy":
            copy(placement, folder, progress)
        weight_files = [WeightFile.of(path, placement.locations[path], size) for path, size in files.items()]
        if weights.side_bytes:
            weights.write_side_file(folder / SIDE_FILE, progress)
            weight_files.append(WeightFile.of(folder / SIDE_FILE, placement.side_location, _SIDE_HEADER_BYTES))
        (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
        if template is not None:
            (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        manifest = Manifest(
            config=model.config,
            special_tokens=special,
            graphs=graphs,
            operator_library=OperatorLibrary(DOMAIN, library_version()),
            state=_state(sources, options),
            weight_files=tuple(weight_files),
            weights_folder=placement.folder,
            max_context=options.max_context or model.config.context_length,
            max_pending=MAX_PENDING,
            page_size=PAGE_SIZE,
            draft_vocab=draft_vocab,
            kv_type=options.kv_type,
            activations=options.activation_kind,
            portable=options.portable,
            notices=tuple(map(one_line, notices + weights.notices())),
            sampling=sampling,
            images=None if tower is None else _images(tower, placement.locations[tower.file.paths[0]]),
            drafter=None if drafter is None else drafter.config,
        )
        manifest.write(folder)
    return manifest


def _texts(metadata: Mapping[str, Any]) -> tuple[str, str | None, SpecialTokens, SuggestedSampling]:
    return tokenizer_json(metadata), chat_template(metadata), special_tokens(metadata), suggested_sampling(metadata)


def _draft_vocab(sources: Sources, options: ExportOptions) -> int | None:
    """Token ids that the draft chooses from are below this; None without a draft."""
    vocab = sources.model.config.vocab
    drafter, head = sources.drafter, sources.model.config.mtp_layers > 0
    if drafter is not None and drafter.tokens is not None and not head:
        return vocab
    return (options.draft_vocab or min(DRAFT_VOCAB, vocab)) if sources.drafts else None


def _state(sources: Sources, options: ExportOptions) -> tuple[StateTensor, ...]:
    drafter = None if sources.drafter is None else sources.drafter.config
    return state_tensors(sources.model.config, options.kv_type, drafter=drafter)


def _images(tower: Tower, location: str) -> ImageInput:
    return ImageInput(tower.config, location, TOWER_ACTIVATIONS)


def _portable_notices(model: Model, options: ExportOptions) -> tuple[str, ...]:
    from trigraph.exporter.graphs.portable import memory_notice

    if options.activations in (None, "float32"):
        return memory_notice(model)
    changed = f"function bodies have no {options.activations} activations: the package has float32 ones"
    return (*memory_notice(model), changed)


def _write_graphs(
    folder: Path, sources: Sources, weights: Weights, options: ExportOptions, draft_vocab: int | None
) -> tuple[str, ...]:
    """Write each graph that the model has; returns their names."""
    from trigraph.exporter.graphs.builder import GraphBuilder
    from trigraph.exporter.graphs.graphs import build_block_draft, build_draft, build_prefill, build_verify
    from trigraph.exporter.graphs.network import Network
    from trigraph.exporter.graphs.portable import add_bodies
    from trigraph.exporter.graphs.vision import build_vision

    config, tower, drafter = sources.model.config, sources.tower, sources.drafter
    builders: dict[str, Callable[[Network], None]] = {
        "prefill": partial(build_prefill, drafter=drafter),
        "verify": partial(build_verify, drafter=drafter),
    }
    if config.mtp_layers:
        builders["draft"] = partial(build_draft, vocab=draft_vocab)
    if drafter is not None:
        builders["block"] = partial(build_block_draft, drafter=drafter, vocab=draft_vocab)
    if tower is not None:
        builders["vision"] = partial(build_vision, config=tower.config)
    features = features_of(config, images=tower is not None, drafter=drafter is not None)
    sections = None if tower is None else rope_sections(sources.model.file, config)
    state = {tensor.name: tensor for tensor in _state(sources, options)}
    for name, build in builders.items():
        graph = GraphBuilder(name, features)
        activations = TOWER_ACTIVATIONS if name == "vision" else options.activation_kind
        build(Network(graph, config, weights, state, activations, sections))
        proto = graph.proto()
        if options.portable:
            add_bodies(proto)
        (folder / f"{name}.onnx").write_bytes(proto.SerializeToString())
    return tuple(builders)
