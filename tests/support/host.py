"""A minimal host of the graphs: sessions, one set of state tensors, and NumPy arrays in and out."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from trigraph.exporter import read_manifest


class Host:
    """Every state tensor is bound as input and as output."""

    def __init__(self, package: Path, library: Path, slots: int = 4, pages: int = 16) -> None:
        self.manifest = read_manifest(package)
        options = ort.SessionOptions()
        options.register_custom_ops_library(str(library))
        options.intra_op_num_threads = 2
        self.sessions = {
            name: ort.InferenceSession(str(package / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])
            for name in self.manifest.graphs
        }
        sizes = {"slots": slots, "pages": pages}
        self.state = {
            tensor.name: ort.OrtValue.ortvalue_from_numpy(
                np.zeros([sizes[dim] if isinstance(dim, str) else dim for dim in tensor.dims], tensor.dtype)
            )
            for tensor in self.manifest.state
        }

    def run(self, graph: str, **inputs: npt.ArrayLike) -> dict[str, npt.NDArray[Any]]:
        run = self.sessions[graph]
        binding = run.io_binding()
        for value in run.get_inputs():
            if value.name.startswith("past."):
                binding.bind_ortvalue_input(value.name, self.state[value.name.removeprefix("past.")])
            else:
                dtype = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(float)": np.float32}[value.type]
                binding.bind_cpu_input(value.name, np.ascontiguousarray(inputs[value.name], dtype))
        results = []
        for value in run.get_outputs():
            if value.name.startswith("present."):
                binding.bind_ortvalue_output(value.name, self.state[value.name.removeprefix("present.")])
            else:
                binding.bind_output(value.name, "cpu")
                results.append(value.name)
        run.run_with_iobinding(binding)
        outputs = binding.get_outputs()
        names = [value.name for value in run.get_outputs()]
        return {name: outputs[names.index(name)].numpy() for name in results}
