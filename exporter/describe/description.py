"""What a GGUF file or a package holds, and the memory that a sequence of it needs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trigraph.custom_ops import DOMAIN
from trigraph.exporter.describe.parts import DrafterDescription, TowerDescription
from trigraph.exporter.describe.words import printable, readable_size
from trigraph.exporter.package.external import load_graph
from trigraph.exporter.package.manifest import SIDE_FILE, ImageInput, Manifest
from trigraph.exporter.package.reader import read_manifest
from trigraph.exporter.package.state_tensors import PAGE_SIZE, StateTensor, state_tensors
from trigraph.models.config import ModelConfig
from trigraph.models.drafter.config import is_drafter
from trigraph.models.drafter.drafter import open_drafter
from trigraph.models.errors import TrigraphError
from trigraph.models.gguf_file import GGUFFile
from trigraph.models.model import Model, open_model
from trigraph.models.streams import Streams
from trigraph.models.vision.config import TOKEN
from trigraph.models.vision.tower import Tower, find_tower, open_tower

# What imports rich waits for a description to be shown: a run shows none.
if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


@dataclass(frozen=True)
class TypeShare:
    """The tensors of one ggml type."""

    tensors: int
    bytes: int


@dataclass(frozen=True)
class Description:
    """A model in summary; sizes are in bytes."""

    path: str
    kind: str
    """"gguf" or "package"."""
    config: ModelConfig
    layers: Mapping[str, int]
    """Trunk layers by kind of mixer."""
    feed_forward: str
    mtp: bool
    types: Mapping[str, TypeShare]
    """By ggml type, the largest share first; converted tensors count as what the GGUF holds."""
    context: int
    state_bytes: int
    """Recurrent state of one sequence, whatever its length."""
    kv_bytes: int
    """KV pages of one sequence of `context` positions, the MTP head's included."""
    kv_type: str
    operators: Mapping[str, Mapping[str, int]]
    """For each graph of a package, its nodes by operator."""
    notices: tuple[str, ...]
    vision: TowerDescription | None = None
    """From the mmproj file that is given, or beside the model."""
    drafter: DrafterDescription | None = None
    """A package's, or that of the file that is given."""

    def as_json(self) -> dict[str, Any]:
        """The description in JSON's types."""
        return dataclasses.asdict(self)

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        tables = [self._summary(), self._weights()]
        if self.operators:
            tables.append(self._operators())
        return Group(*tables, *map(Text, self.notices))

    def _summary(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        config = self.config
        title = Text(f"{printable(config.name)} ({config.architecture})", style="table.title")
        table = Table(title=title, show_header=False)
        rows = [
            ("file" if self.kind == "gguf" else "folder", printable(self.path)),
            ("layers", ", ".join(f"{count} {kind}" for kind, count in self.layers.items())),
            ("feed-forward", self.feed_forward),
            ("MTP head", self._mtp()),
            ("hidden size, vocabulary", f"{config.hidden}, {config.vocab}{' (tied)' if config.tied else ''}"),
            ("state of a sequence", readable_size(self.state_bytes)),
            (f"KV of {self.context} positions ({self.kv_type})", readable_size(self.kv_bytes)),
        ]
        if self.vision is not None:
            rows.append(("vision tower", str(self.vision)))
            rows.append(("", printable(Path(self.vision.path).name)))
            rows.append(("tokens of an image", f"one for {TOKEN} x {TOKEN} pixels, so 1024 for 1024 x 1024"))
        if self.drafter is not None:
            rows[4:4] = [*self.drafter.rows(), ("", printable(Path(self.drafter.path).name))]
        elif config.streams is not None:
            rows[5:5] = _streams_rows(config.streams)
        for name, value in rows:
            table.add_row(name, Text(value))
        return table

    def _mtp(self) -> str:
        if self.mtp:
            return "yes"
        return "no: drafts are n-grams alone" if self.drafter is None else "no"

    def _weights(self) -> Table:
        from rich.table import Table

        table = Table("type", "tensors", "bytes", "share", title="Weights")
        total = sum(share.bytes for share in self.types.values())
        for name, share in self.types.items():
            table.add_row(name, str(share.tensors), readable_size(share.bytes), f"{share.bytes / total:.1%}")
        table.add_row("all", str(sum(share.tensors for share in self.types.values())), readable_size(total), "")
        return table

    def _operators(self) -> Table:
        from rich.table import Table

        table = Table("operator", *self.operators, title="Nodes of the graphs")
        counts = Counter[str]()
        for nodes in self.operators.values():
            counts.update(nodes)
        for operator in sorted(counts, key=lambda name: (not name.startswith(DOMAIN), name)):
            table.add_row(operator, *(str(nodes.get(operator, "")) for nodes in self.operators.values()))
        return table


def describe(
    path: Path, context: int | None = None, mmproj: Path | None = None, draft_model: Path | None = None
) -> Description:
    """Describe a GGUF file or a package, with memory for `context` positions a sequence (default: the most).

    `mmproj` is the file with the vision tower; for a GGUF file the default is one beside it. `draft_model` is the file
    of a block drafter. Raises TrigraphError for anything that is neither, for a context that is not positive, and for
    a tower or a drafter that does not belong to the model.
    """
    if context is not None and context < 1:
        raise TrigraphError(f"context is {context}, expected at least 1")
    if path.is_dir():
        if draft_model is not None:
            raise TrigraphError(f"{path}: is a package, whose drafter is that of its export; give a GGUF file")
        described = _describe_package(path, read_manifest(path), context)
        return described if mmproj is None else _with_tower(described, open_tower(mmproj, described.config))
    model = open_model(path)
    context = context or model.config.context_length
    drafter = None if draft_model is None else open_drafter(draft_model, model.config)
    state = state_tensors(model.config, "f16", drafter=None if drafter is None else drafter.config)
    described = _describe(path, model, state, context)
    if drafter is not None:
        described = dataclasses.replace(described, drafter=DrafterDescription.of(drafter))
    if mmproj is not None:
        return _with_tower(described, open_tower(mmproj, described.config))
    tower, reasons = find_tower(model)
    described = dataclasses.replace(described, notices=described.notices + reasons)
    return described if tower is None else _with_tower(described, tower)


def _with_tower(description: Description, tower: Tower) -> Description:
    return dataclasses.replace(description, vision=TowerDescription.of(tower))


def sequence_bytes(state: tuple[StateTensor, ...], context: int) -> tuple[int, int]:
    """Bytes of recurrent state, and of KV pages for `context` positions, of one sequence."""
    pages = -(-context // PAGE_SIZE)
    slots = sum(tensor.item_bytes for tensor in state if tensor.dims[0] == "slots")
    return slots, pages * sum(tensor.item_bytes for tensor in state if tensor.dims[0] == "pages")


def _describe_package(folder: Path, manifest: Manifest, context: int | None) -> Description:
    model = model_of(folder, manifest)
    return dataclasses.replace(
        _describe(folder, model, manifest.state, context or manifest.max_context),
        kind="package",
        kv_type=manifest.kv_type,
        operators={name: _count_operators(folder / f"{name}.onnx") for name in manifest.graphs},
        notices=manifest.notices,
        vision=None if manifest.images is None else _tower_of(folder, manifest, manifest.images),
        drafter=_drafter_of(folder, manifest, model.config),
    )


def _drafter_of(folder: Path, manifest: Manifest, config: ModelConfig) -> DrafterDescription | None:
    path = drafter_path(folder, manifest)
    return None if path is None else DrafterDescription.of(open_drafter(path, config))


def drafter_path(folder: Path, manifest: Manifest) -> Path | None:
    """The file of a package's block drafter: the weight file that says so."""
    if manifest.drafter is None:
        return None
    files = [path for path in manifest.weight_paths(folder).values() if path.name != SIDE_FILE]
    return next((path for path in files if is_drafter(GGUFFile.open(path))), None)


def _tower_of(folder: Path, manifest: Manifest, images: ImageInput) -> TowerDescription:
    return TowerDescription.of(open_tower(manifest.weights_base(folder) / images.weights, manifest.config))


def _describe(path: Path, model: Model, state: tuple[StateTensor, ...], context: int) -> Description:
    """A model as a GGUF file holds it, with the state of a default export."""
    config = model.config
    state_bytes, kv_bytes = sequence_bytes(state, context)
    return Description(
        path=str(path),
        kind="gguf",
        config=config,
        layers={"Gated DeltaNet": sum(config.recurrent), "full attention": config.trunk_layers - sum(config.recurrent)},
        feed_forward=_feed_forward(config),
        mtp=config.mtp_layers > 0,
        types=_types(model),
        context=context,
        state_bytes=state_bytes,
        kv_bytes=kv_bytes,
        kv_type="f16",
        operators={},
        notices=model.notices,
    )


def _feed_forward(config: ModelConfig) -> str:
    if not config.experts:
        return f"dense, width {config.ffn}"
    experts = f"{config.experts_used} of {config.experts} experts of width {config.expert_ffn}"
    return f"{experts}, a shared one of width {config.shared_ffn}"


def _streams_rows(streams: Streams) -> list[tuple[str, str]]:
    indexer, ngrams = streams.indexer, streams.ngrams
    rows = [("residual streams", str(streams.count))]
    if ngrams is not None:
        table = f"{round(ngrams.rows * ngrams.width / 1e6)} M parameters, of which a token reads"
        rows.append(("n-gram table", f"{table} {ngrams.width * ngrams.heads * (ngrams.size - 1)}"))
    groups = f"{indexer.top} groups of {indexer.group} positions"
    return [*rows, ("attention sees", f"{groups}, so all of {indexer.dense_positions} tokens")]


def _types(model: Model) -> dict[str, TypeShare]:
    counts, sizes = Counter[str](), Counter[str]()
    for tensor in model.tensors.values():
        counts[tensor.type] += 1
        sizes[tensor.type] += tensor.nbytes
    return {name: TypeShare(counts[name], size) for name, size in sizes.most_common()}


def model_of(folder: Path, manifest: Manifest) -> Model:
    """The model whose files a package points to; the trunk's parts come first, then a separate MTP file."""
    paths = list(manifest.weight_paths(folder).values())
    trunk = GGUFFile.open(paths[0]).paths
    tower = manifest.weights_base(folder) / manifest.images.weights if manifest.images else None
    drafter = drafter_path(folder, manifest)
    others = [path for path in paths if path not in (*trunk, tower, drafter) and path.name != SIDE_FILE]
    return open_model(paths[0], others[0] if others else None)


def _count_operators(path: Path) -> dict[str, int]:
    graph = load_graph(path).graph
    return dict(Counter(f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in graph.node))
