"""The vision tower: images to the rows that a prefill takes in the places of their tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from trigraph.models.checks import check
from trigraph.models.vision.config import VisionConfig
from trigraph.models.vision.grid import patch_places, table_rows
from trigraph.runtime.device.device import Device
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.execution.sessions import Buffers, run_session
from trigraph.runtime.images.embeddings import EmbeddingCache
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.prompt import ImagePrompt, PlacedImage


class TowerGraph:
    """The graph in ONNX Runtime; images are computed one by one."""

    def __init__(
        self, config: VisionConfig, session: ort.InferenceSession, device: Device, weights: MappedWeights
    ) -> None:
        """`weights` live as long as they are read."""
        self._config, self._session, self._device, self._weights = config, session, device, weights
        self._buffers, self._staging = Buffers(device), device.staging()

    def run(self, image: ResizedImage) -> NDArray[np.float32]:
        """The rows of an image's tokens, row by row: [tokens, hidden]."""
        device, config = self._device, self._config
        index, weights = table_rows(*image.grid, config.table_side)
        given: dict[str, NDArray[Any]] = {
            "patches": image.patches(config),
            "places": patch_places(*image.grid),
            "table_rows": index,
            "table_weights": weights,
            "cu_seqlens": np.array([0, len(index[0])], np.int32),
        }
        inputs = self._buffers.arrays("in", {name: (array.shape, array.dtype) for name, array in given.items()})
        outputs = self._buffers.arrays("out", {"embeddings": ((image.tokens, config.hidden), np.float32)})
        io = self._session.io_binding()
        for name, memory in inputs.items():
            device.bind_input(io, name, memory)
        for name, memory in outputs.items():
            device.bind_output(io, name, memory)
        exchange = device.exchange(self._staging, inputs, outputs)
        places = exchange.inputs
        for name, array in given.items():
            places[name][:] = array
        exchange.send()
        run_session(self._session, device, io, device.run_options("vision"))
        exchange.receive()
        rows: NDArray[np.float32] = np.array(exchange.outputs["embeddings"])
        return rows


class Vision:
    """Reads the images of prompts, each once as long as its rows are kept. For the engine's thread."""

    def __init__(self, config: VisionConfig, sha256: str, open_graph: Callable[[], TowerGraph], budget: int) -> None:
        """`sha256`: of the tower. `open_graph` is called at the first image. `budget`: bytes of rows that are kept."""
        check("image_memory", budget, int, lambda value: value >= 0, "0 or more")
        self.config = config
        self.embeddings = EmbeddingCache(budget)
        self._sha256, self._open = sha256, open_graph
        self._graph: TowerGraph | None = None

    def placed(self, prompt: ImagePrompt) -> tuple[PlacedImage, ...]:
        """The images of a prompt, with their digests. Any thread may call it."""
        pairs = zip(prompt.images, prompt.pixels, strict=True)
        return tuple(PlacedImage(span, pixels.digest(self._sha256)) for span, pixels in pairs)

    def rows(self, image: PlacedImage, pixels: ResizedImage) -> NDArray[np.float32]:
        """The rows of an image's tokens, read-only [tokens, hidden]."""
        return self.embeddings.rows(image.digest, lambda: self._run(pixels))

    def _run(self, pixels: ResizedImage) -> NDArray[np.float32]:
        if self._graph is None:
            self._graph = self._open()
        return self._graph.run(pixels)
