"""The graph of the vision tower: an image to the rows that a prefill takes in the places of its tokens."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from trigraph.custom_ops import library_function
from trigraph.models.vision.config import VisionConfig
from trigraph.models.vision.grid import patch_places, table_rows
from trigraph.runtime.device.device import Device
from trigraph.runtime.device.weight_source import WeightSource
from trigraph.runtime.execution.sessions import Buffers, run_session
from trigraph.runtime.images.image import ResizedImage


class TowerGraph:
    """The graph in ONNX Runtime; images are computed one by one."""

    def __init__(
        self, config: VisionConfig, session: ort.InferenceSession, device: Device, source: WeightSource
    ) -> None:
        """`source`: of the weights, which live as long as they are read."""
        self._config, self._session, self._device, self._source = config, session, device, source
        self._buffers, self._exchange, self._options = Buffers(device), device.exchanges(), device.run_options()
        self._began = 0  # layers that were computed before the image

    @property
    def progress(self) -> float:
        """The part of the image in `run` that is computed. Another thread may ask.

        It counts the layers of all towers in the process: with several at work, it is too large.
        """
        return min(1.0, (_layers() - self._began) / self._config.layers)

    def run(self, image: ResizedImage) -> NDArray[np.float32]:
        """The rows of an image's tokens, row by row: [tokens, hidden]."""
        self._began = _layers()
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
        device.bind(io, inputs, outputs)
        exchange = self._exchange(inputs, outputs)
        places = exchange.inputs
        for name, array in given.items():
            places[name][:] = array
        exchange.send()
        run_session(self._session, device, self._source, io, self._options)
        exchange.receive()
        rows: NDArray[np.float32] = np.array(exchange.outputs["embeddings"])
        return rows

    def stop(self) -> None:
        """Has a run that goes on in another thread end, and all later ones, with an error."""
        self._options.terminate = True


def _layers() -> int:
    """Layers of towers that the CPU's operators have computed in this process."""
    if (function := library_function("trigraph_patch_attentions")) is None:
        return 0
    function.restype = ctypes.c_int64
    return int(function())
