"""From a GGUF file to a package: its graphs, a manifest, the tokenizer, and the weights by reference."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trigraph.custom_ops import DOMAIN, library_version
from trigraph.exporter.package.folder import check_target, staged
from trigraph.exporter.package.manifest import (
    SIDE_FILE,
    ImageInput,
    Manifest,
    OperatorLibrary,
    WeightFile,
    features_of,
)
from trigraph.exporter.package.state_tensors import KV_TYPES, MAX_PENDING, PAGE_SIZE, state_tensors
from trigraph.exporter.placement import MODES, copy, place
from trigraph.models.config import ModelConfig
from trigraph.models.errors import TrigraphError, named, one_line
from trigraph.models.keys import MAX_SIZE
from trigraph.models.model import Model, companion, open_model
from trigraph.models.progress import Progress, silent
from trigraph.models.rope_positions import rope_sections
from trigraph.models.rope_scaling import parse_rope_scaling
from trigraph.models.sampling import SuggestedSampling, suggested_sampling
from trigraph.models.tokenizer import SpecialTokens, chat_template, special_tokens, tokenizer_json
from trigraph.models.vision.tower import Tower, find_tower, open_tower

# What imports onnx_ir waits for an export to be made: that takes half a second, more than all the rest of a start.
if TYPE_CHECKING:
    from trigraph.exporter.graphs.network import Network
    from trigraph.exporter.graphs.weights import Weights

ACTIVATIONS = ("float32", "int8")
TOWER_ACTIVATIONS = "float32"
DRAFT_VOCAB = 65536
"""Token ids that a draft chooses from: low ids are the frequent merges, and a draft reads a row of weights for each."""
_SIDE_HEADER_BYTES = 1 << 16


@dataclass(frozen=True)
class ExportOptions:
    """Choices of an export."""

    mtp: Path | None = None
    """A GGUF file with the MTP head, when the model's own file has none; one that is found beside it unless given."""
    mmproj: Path | None = None
    """A GGUF file with the model's vision tower; one that is found beside it unless given."""
    max_context: int | None = None
    """Most positions of a sequence; the model's context length unless given."""
    draft_vocab: int | None = None
    """Draft only token ids below this; DRAFT_VOCAB unless given."""
    kv_type: str = "f16"
    """"f16", "f32" or "q8_0"."""
    rope_scaling: str | None = None
    """Context extension: "yarn:FACTOR", or "none"; as the file says unless given."""
    activations: str | None = None
    """How block matrix products hold activations: "float32" or "int8"; the faster int8 unless given or portable."""
    weights: str = "link"
    """"link" the GGUF into the package, "copy" it, or "reference" it where it is, as "link" does, too, where the file
    system cannot link it; the manifest's `weights_folder` tells."""
    portable: bool = False
    """Whether graphs carry function bodies, for hosts without the operator library: of text, with one residual stream,
    float32 activations, and keys and values that are numbers."""

    @property
    def activation_kind(self) -> str:
        """The kind of activations that the graphs will have."""
        return "float32" if self.portable else self.activations or "int8"


def export(
    source: Path,
    out: Path,
    options: ExportOptions = ExportOptions(),
    progress: Progress = silent,
    *,
    replace: bool = True,
) -> Manifest:
    """Write the package of a model to the folder `out`; with `replace`, in the place of a package that is there.

    Of tensor data a sample is read, and all of types that no kernel reads; those are converted and named in the
    manifest's notices. Raises TrigraphError, and leaves nothing behind, when the model or an option is unusable or the
    folder cannot be written.
    """
    from trigraph.exporter.graphs.weights import Weights, WithTower

    source, out = Path(source), Path(os.path.abspath(out))
    model = _extended(open_model(source, options.mtp or companion(source)), options.rope_scaling)
    _check_options(options, model.config)
    tower, unusable = _tower(model, options)
    notices = model.notices + unusable + (_portable_notices(model, options) if options.portable else ())
    files = _weight_files(model, tower)
    check_target(out, list(files), replace=replace)
    draft_vocab = (options.draft_vocab or min(DRAFT_VOCAB, model.config.vocab)) if model.config.mtp_layers else None
    with named(source):
        tokenizer, template, special, sampling = _texts(model.file.metadata)
    with staged(out, replace=replace) as folder:
        placement = place(list(files), out, folder, options.weights)
        weights = Weights(WithTower(model, tower) if tower else model, placement.locations, placement.side_location)
        graphs = _write_graphs(folder, model, tower, weights, options, draft_vocab)
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
            state=state_tensors(model.config, options.kv_type),
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
        )
        manifest.write(folder)
    return manifest


def _texts(metadata: Mapping[str, Any]) -> tuple[str, str | None, SpecialTokens, SuggestedSampling]:
    return tokenizer_json(metadata), chat_template(metadata), special_tokens(metadata), suggested_sampling(metadata)


def _tower(model: Model, options: ExportOptions) -> tuple[Tower | None, tuple[str, ...]]:
    """The model's vision tower, and why what might be one is none."""
    if options.mmproj is not None:
        return open_tower(options.mmproj, model.config), ()
    tower, reasons = find_tower(model)
    if options.portable and tower is not None:
        tower, reasons = None, ("portable packages are for text alone",)
    return tower, tuple(f"images cannot be read: {reason}" for reason in reasons)


def _images(tower: Tower, location: str) -> ImageInput:
    return ImageInput(tower.config, location, TOWER_ACTIVATIONS)


def _portable_notices(model: Model, options: ExportOptions) -> tuple[str, ...]:
    from trigraph.exporter.graphs.portable import memory_notice

    if options.activations in (None, "float32"):
        return memory_notice(model)
    changed = f"function bodies have no {options.activations} activations: the package has float32 ones"
    return (*memory_notice(model), changed)


def _write_graphs(
    folder: Path, model: Model, tower: Tower | None, weights: Weights, options: ExportOptions, draft_vocab: int | None
) -> tuple[str, ...]:
    """Write each graph that the model has; returns their names."""
    from trigraph.exporter.graphs.builder import GraphBuilder
    from trigraph.exporter.graphs.graphs import build_draft, build_prefill, build_verify
    from trigraph.exporter.graphs.network import Network
    from trigraph.exporter.graphs.portable import add_bodies
    from trigraph.exporter.graphs.vision import build_vision

    config = model.config
    builders: dict[str, Callable[[Network], None]] = {"prefill": build_prefill, "verify": build_verify}
    if config.mtp_layers:
        builders["draft"] = partial(build_draft, vocab=draft_vocab)
    if tower is not None:
        builders["vision"] = partial(build_vision, config=tower.config)
    features = features_of(config, images=tower is not None)
    sections = None if tower is None else rope_sections(model.file, config)
    state = {tensor.name: tensor for tensor in state_tensors(config, options.kv_type)}
    for name, build in builders.items():
        graph = GraphBuilder(name, features)
        activations = TOWER_ACTIVATIONS if name == "vision" else options.activation_kind
        build(Network(graph, config, weights, state, activations, sections))
        proto = graph.proto()
        if options.portable:
            add_bodies(proto)
        (folder / f"{name}.onnx").write_bytes(proto.SerializeToString())
    return tuple(builders)


def _weight_files(model: Model, tower: Tower | None) -> dict[Path, int]:
    """Every file of the model and its tower, and the size of its header."""
    files = [model.file, *([model.mtp_file] if model.mtp_file else []), *([tower.file] if tower else [])]
    return {path: size for file in files for path, size in file.header_bytes.items()}


def _extended(model: Model, rope_scaling: str | None) -> Model:
    """The model with the context that its own scaling, or the one that is asked for, extends it to."""
    config, own = model.config, model.config.rope_scaling
    trained = config.context_length if own is None else own.original_context
    scaling = own if rope_scaling is None else parse_rope_scaling(rope_scaling, trained)
    length = min(config.context_length, trained)
    if scaling is not None:
        scaling.ramp(config.rope_dims, config.rope_theta)
        extended = int(trained * scaling.factor)
        length = max(config.context_length, extended) if rope_scaling is None else extended
    if length > MAX_SIZE:
        raise TrigraphError(f"the scaling of positions extends the context to {length} tokens, above {MAX_SIZE}")
    return dataclasses.replace(model, config=dataclasses.replace(config, rope_scaling=scaling, context_length=length))


def _check_portable(options: ExportOptions, config: ModelConfig) -> None:
    """Raises TrigraphError for what has no function bodies."""
    for unusable, what in (
        (config.streams is not None, "the model has residual streams"),
        (options.kv_type == "q8_0", "kv-type is q8_0"),
        (options.mmproj is not None, "mmproj names a vision tower"),
    ):
        if unusable:
            raise TrigraphError(
                f"{what}: portable packages, which run without the operator library, have text alone, one residual "
                "stream, and keys and values of type f16 or f32; leave that out, or export without portable"
            )


def _check_options(options: ExportOptions, config: ModelConfig) -> None:
    if options.portable:
        _check_portable(options, config)
    for name, value, known in (
        ("kv-type", options.kv_type, tuple(KV_TYPES)),
        ("activations", options.activation_kind, ACTIVATIONS),
        ("weights", options.weights, MODES),
    ):
        if value not in known:
            raise TrigraphError(f"{name} is {value!r}, expected one of {', '.join(known)}")
    if options.max_context is not None and not 1 <= options.max_context <= config.context_length:
        raise TrigraphError(
            f"max-context is {options.max_context}, expected 1 to {config.context_length}, the model's context length"
        )
    if options.draft_vocab is not None:
        if not config.mtp_layers:
            raise TrigraphError(
                f"draft-vocab is {options.draft_vocab}, but the model has no MTP head to draft with; leave it out"
            )
        if not 1 <= options.draft_vocab <= config.vocab:
            raise TrigraphError(
                f"draft-vocab is {options.draft_vocab}, expected 1 to {config.vocab}, the size of the vocabulary"
            )
