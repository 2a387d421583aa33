"""The graphs of a package, opened on one state and one mapping of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnxruntime as ort

from trigraph.exporter import Manifest
from trigraph.exporter.package.external import load_checked
from trigraph.models.errors import TrigraphError
from trigraph.models.progress import Progress, silent
from trigraph.runtime.device.parts.layers import cut
from trigraph.runtime.execution.contract import check_contract
from trigraph.runtime.execution.layered_graph import LayeredGraph
from trigraph.runtime.execution.parts import Part
from trigraph.runtime.execution.pending import resize
from trigraph.runtime.execution.sessions import Graph, SessionGraph, open_session
from trigraph.runtime.execution.tower import TowerGraph
from trigraph.runtime.state.state import State

_LAYERED = ("prefill", "verify")  # the graphs of the trunk
_PIECES = 4  # of a chunk, so that parts work at once; experts of the CPU would be copied to a GPU for each of them


def load_graphs(folder: Path, manifest: Manifest, names: Sequence[str]) -> Mapping[str, onnx.ModelProto]:
    """The graphs of a package by name, as their files have them. Raises TrigraphError for a damaged one."""
    return {name: load_checked(folder / f"{name}.onnx", manifest.weight_paths(folder)) for name in names}


@dataclass(frozen=True)
class PreparedGraph:
    """A graph, or what a part of the model has of it, with its weights where the part's device reads them."""

    path: Path
    part: Part
    changed: onnx.ModelProto | None
    """What runs in place of the file."""
    initializers: dict[str, ort.OrtValue]


@dataclass(frozen=True)
class PackageGraphs:
    """Opens the graphs of a package, those of the trunk in parts."""

    folder: Path
    manifest: Manifest
    parts: Sequence[Part]
    threads: int
    progress: Progress = silent

    @property
    def last(self) -> Part:
        """The part that has all but layers of the trunk."""
        return self.parts[-1]

    def load(self, name: str) -> onnx.ModelProto:
        """The graph of that name as its file has it. Raises TrigraphError for a damaged one."""
        return load_graphs(self.folder, self.manifest, [name])[name]

    def prepare(self, name: str) -> Sequence[PreparedGraph]:
        """Reads the graph of that name, and has its weights ready. Raises TrigraphError for a damaged one."""
        path, model = self.folder / f"{name}.onnx", self.load(name)
        changed, parts, models = resize(model, self.manifest), self.parts[-1:], [model]
        if len(self.parts) > 1 and name in _LAYERED:
            changed, parts = True, self.parts
            models = cut(model, [part.end for part in parts[:-1]])

        def prepared(part: Part, model: onnx.ModelProto) -> PreparedGraph:
            adapted = part.source.adapt(model) or changed
            initializers = part.source.initializers(path, model.graph, self.progress)
            return PreparedGraph(path, part, model if adapted else None, initializers)

        return [prepared(*pair) for pair in zip(parts, models, strict=True)]

    def open(self, graphs: Sequence[PreparedGraph], state: State) -> Graph:
        """Opens it. Raises TrigraphError when it is not the graph that the manifest describes."""
        path, sessions = graphs[0].path, [self._session(graph) for graph in graphs]
        check_contract(sessions, path, self.manifest)
        opened = [
            SessionGraph(path.stem, session, part.device, state.buffers, state.columns, part.source)
            for session, part in zip(sessions, (graph.part for graph in graphs), strict=True)
        ]
        split = any(graph.part.source.reads_mapped and not graph.part.device.is_host for graph in graphs)
        return opened[0] if len(opened) == 1 else LayeredGraph(opened, 1 if split else _PIECES)

    def open_tower(self) -> TowerGraph:
        """Opens the graph of the vision tower. Raises TrigraphError when it is not the one of the contract."""
        images = self.manifest.images
        if images is None:
            raise TrigraphError("the package has no vision tower")
        (graph,) = self.prepare("vision")
        session = self._session(graph)
        check_contract([session], graph.path, self.manifest)
        return TowerGraph(images.tower, session, self.last.device, self.last.source)

    def _session(self, graph: PreparedGraph) -> ort.InferenceSession:
        base = self.manifest.weights_base(self.folder)
        return open_session(graph.path, graph.changed, graph.initializers, base, self.threads, graph.part.device)
