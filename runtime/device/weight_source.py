"""Where the graphs of a package read their weights: in the mapped files, or in what a subclass makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from trigraph.models.errors import TrigraphError
from trigraph.models.progress import Progress, silent
from trigraph.runtime.device.mapped_weights import MappedWeights


class WeightSource:
    """The mapped files as they are."""

    def __init__(self, mapped: MappedWeights) -> None:
        self.mapped = mapped
        self.reads_mapped = True
        """Whether steps read weights in the mapped files, and not in copies alone."""

    @property
    def piece(self) -> int | None:
        """Most tokens of prompts in a step; None for as many as the device likes."""
        return None

    def place(self, share: Any, experts: Mapping[str, int], counts: Path) -> None:
        """Says what lies on a device, before any graph is adapted.

        `share`: the GpuShare of a device that is a GPU. `experts`: how many each layer of the model has. `counts`: the
        file that says from one start to the next how often they were chosen.
        """

    def hold(
        self, models: Callable[[], Mapping[str, onnx.ModelProto]], state: Mapping[str, int], budget: int | None
    ) -> Sequence[str]:
        """Says that all layers lie on a device, before any graph is adapted, and returns what the user should know.

        `models`: loads the graphs by name. `state`: bytes of the state tensors by name. `budget`: bytes for weights and
        state; None for what is free. Raises TrigraphError for one that is too small.
        """
        return ()

    def adapt(self, model: onnx.ModelProto) -> bool:
        """Changes a graph to one that reads these weights; whether anything was changed."""
        return False

    def initializers(self, path: Path, graph: onnx.GraphProto, progress: Progress = silent) -> dict[str, ort.OrtValue]:
        """The weights of the graph in file `path`, shared by all graphs of a package.

        `progress` is told of weights that are copied.
        """
        return self.mapped.initializers(path, graph)

    def before_step(self, graph: str) -> None:
        """What is to be done between steps, ahead of one of the prefill, draft or verify graph."""

    def shortage(self, error: Exception) -> TrigraphError | None:
        """What an error of a step means, where a device has no memory left: a RetryError if there is more now."""
        return None
