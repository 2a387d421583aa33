"""The graphs of a package, opened on one state and one mapping of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnxruntime as ort

from trigraph.exporter import Manifest
from trigraph.exporter.package.external import load_checked
from trigraph.exporter.package.manifest import EXPERT_COUNTS
from trigraph.models.errors import TrigraphError
from trigraph.models.progress import Progress, silent
from trigraph.runtime.device.choice import open_device
from trigraph.runtime.device.device import Device
from trigraph.runtime.device.parts.layers import cut
from trigraph.runtime.device.weight_source import WeightSource
from trigraph.runtime.execution.contract import check_contract
from trigraph.runtime.execution.layered_graph import LayeredGraph
from trigraph.runtime.execution.pending import resize
from trigraph.runtime.execution.sessions import Graph, SessionGraph, open_session
from trigraph.runtime.execution.tower import TowerGraph
from trigraph.runtime.state.state import State


@dataclass(frozen=True)
class PreparedGraph:
    """A graph as a device runs it, with its weights where the device reads them."""

    path: Path
    changed: onnx.ModelProto | None
    """What runs in place of the file."""
    initializers: dict[str, ort.OrtValue]
    host: PreparedGraph | None = None
    """The first layers, where the CPU computes those in the device's place."""


@dataclass(frozen=True)
class PackageGraphs:
    """Opens the graphs of a package on a device."""

    folder: Path
    manifest: Manifest
    device: Device
    source: WeightSource
    threads: int
    progress: Progress = silent

    def place(self, names: Sequence[str], state: Mapping[str, int], budget: int | None) -> Sequence[str]:
        """Decides which weights of these graphs lie on the device: see WeightSource.place."""

        def models() -> Mapping[str, onnx.ModelProto]:
            return {name: self.load(name) for name in names}

        return self.source.place(models, state, budget, self.folder / EXPERT_COUNTS)

    def load(self, name: str) -> onnx.ModelProto:
        """The graph of that name as its file has it. Raises TrigraphError for a damaged one."""
        return load_checked(self.folder / f"{name}.onnx", self.manifest.weight_paths(self.folder))

    def prepare(self, name: str) -> PreparedGraph:
        """Reads the graph of that name, and has its weights ready. Raises TrigraphError for a damaged one."""
        path, model = self.folder / f"{name}.onnx", self.load(name)
        resized, host = resize(model, self.manifest), None
        if self.source.host_layers and name in ("prefill", "verify"):
            first, model = cut(model, self.source.host_layers, self.manifest.config.hidden)
            host = PreparedGraph(path, first, self.source.mapped.initializers(path, first.graph))
        adapted = self.source.adapt(model) or resized
        initializers = self.source.initializers(path, model.graph, self.progress)
        return PreparedGraph(path, model if adapted else None, initializers, host)

    def open(self, graph: PreparedGraph, state: State) -> Graph:
        """Opens it. Raises TrigraphError when it is not the graph that the manifest describes."""

        def opened(session: ort.InferenceSession, device: Device, source: WeightSource) -> SessionGraph:
            return SessionGraph(graph.path.stem, session, device, state.buffers, state.limits.pages, source)

        session = self._session(graph, self.device)
        if graph.host is None:
            check_contract([session], graph.path, self.manifest)
            return opened(session, self.device, self.source)
        cpu = open_device("cpu")
        first = self._session(graph.host, cpu)
        check_contract([first, session], graph.path, self.manifest)
        mapped = WeightSource(self.source.mapped)
        return LayeredGraph(opened(first, cpu, mapped), opened(session, self.device, self.source))

    def open_tower(self) -> TowerGraph:
        """Opens the graph of the vision tower. Raises TrigraphError when it is not the one of the contract."""
        images = self.manifest.images
        if images is None:
            raise TrigraphError("the package has no vision tower")
        session = self._session(graph := self.prepare("vision"), self.device)
        check_contract([session], graph.path, self.manifest)
        return TowerGraph(images.tower, session, self.device, self.source)

    def _session(self, graph: PreparedGraph, device: Device) -> ort.InferenceSession:
        base = self.manifest.weights_base(self.folder)
        return open_session(graph.path, graph.changed, graph.initializers, base, self.threads, device)
