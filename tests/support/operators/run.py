"""Runs one operator of our domain in ONNX Runtime, with outputs poisoned by NaN first.

The environment variable TRIGRAPH_TEST_LIBRARY chooses the operator library: cpu, or cuda, which may be emulated.
"""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from trigraph.custom_ops import DOMAIN, library_path
from trigraph.runtime.device.cuda.library import PROVIDER, CudaLibrary
from trigraph.runtime.device.device import aligned_zeros

LIBRARY = os.environ.get("TRIGRAPH_TEST_LIBRARY", "cpu")
THREADS = (1,) if LIBRARY == "cuda" else (1, 2)
"""Of a session, wherever threads may matter: a device's kernels know nothing of the host's."""

OPERATOR_TESTS = (
    "custom_ops/test_bias_activation.py",
    "custom_ops/test_block_drafts.py",
    "custom_ops/test_block_gather.py",
    "custom_ops/test_block_matmul.py",
    "custom_ops/test_exact_products.py",
    "custom_ops/test_gated_delta_net.py",
    "custom_ops/test_gated_delta_net_bits.py",
    "custom_ops/test_gated_delta_net_errors.py",
    "custom_ops/test_gated_delta_net_order.py",
    "custom_ops/test_grouped_expert_ffn.py",
    "custom_ops/test_indexer.py",
    "custom_ops/test_layer_norm.py",
    "custom_ops/test_ngrams.py",
    "custom_ops/test_operator_errors.py",
    "custom_ops/test_paged_attention.py",
    "custom_ops/test_paged_attention_bits.py",
    "custom_ops/test_paged_attention_errors.py",
    "custom_ops/test_paged_attention_positions.py",
    "custom_ops/test_paged_attention_sight.py",
    "custom_ops/test_patch_attention.py",
    "custom_ops/test_position_rows.py",
    "custom_ops/test_rms_norm.py",
    "models/test_rope_scaling.py::test_operators",
    "models/test_rope_scaling.py::test_positions_near_a_million",
    "custom_ops/test_router.py",
    "custom_ops/test_row_operators.py",
    "custom_ops/test_selected_attention.py",
    "custom_ops/test_streams.py",
    "custom_ops/test_top_token.py",
    "custom_ops/test_top_tokens.py",
    "cuda/emulator/drawn.py",
    "cuda/emulator/fused.py",
    "cuda/emulator/planes.py",
    "cuda/emulator/prompts.py",
    "cuda/emulator/split.py",
    "cuda/emulator/standard.py",
    "cuda/emulator/tables.py",
    "cuda/emulator/walked.py",
)
"""Files of tests/ that a library of CUDA's kernels passes too."""
SKIPPED_ON_DEVICES = {"a device's memory is aligned"}
"""Why one of their tests may be left out there."""

ONNX_TYPE = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float64): TensorProto.DOUBLE,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int64): TensorProto.INT64,
}


def _poisoned(shape: Sequence[int], dtype: Any) -> np.ndarray:
    out = np.empty(shape, dtype)
    if np.issubdtype(out.dtype, np.floating):
        out.fill(np.nan)
    else:
        out.view(np.uint8).reshape(-1)[:] = 0xAB
    return out


class _Device:
    """Where a library's operators run, and the errors that they report there."""

    def __init__(self, library: str) -> None:
        self.path = library_path(library)
        self._library = CudaLibrary(self.path) if library == "cuda" else None
        self.provider = self._library.provider if self._library else "CPUExecutionProvider"
        if self.provider == PROVIDER:
            ort.preload_dlls()  # CUDA's libraries as pip installs them
        self._memory = self._library.memory_name if self._library else "cpu"

    def value(self, array: np.ndarray) -> ort.OrtValue:
        """On a CPU the array's own memory; for an emulated GPU aligned as a device's is."""
        if self._library and self._memory == "cpu":
            aligned = aligned_zeros(array.shape, array.dtype)
            aligned[...] = array
            array = aligned
        return ort.OrtValue.ortvalue_from_numpy(array, self._memory)

    def raise_device_error(self) -> None:
        """A GPU may find a bad value when the run is over for the host."""
        if self._library:
            self._library.wait()


@cache
def _device(library: str, folder: str | None) -> _Device:
    """Of that TRIGRAPH_LIBRARY_DIR."""
    return _Device(library)


def device(library: str) -> _Device:
    """Made once: to find a library, the versions of installed packages are read."""
    return _device(library, os.environ.get("TRIGRAPH_LIBRARY_DIR"))


def provider(library: str = LIBRARY) -> str:
    """The execution provider of a library's kernels."""
    return device(library).provider


class Operator:
    """One node in a session: `Operator("BlockMatMul", ...)(x, weight)` -> list of arrays.

    `inputs` are example arrays (None = absent optional input; bf16 travels as a pair ("bf16", uint16 array)); only
    their types and ranks matter. `alias` maps an output index to the input index that shares its buffer. `library`: cpu
    or cuda.
    """

    def __init__(
        self,
        op_type: str,
        inputs: Sequence[Any],
        output_types: Sequence[Any],
        attributes: Mapping[str, Any],
        *,
        threads: int = 1,
        alias: Mapping[int, int] | None = None,
        library: str = LIBRARY,
    ) -> None:
        self.device = device(library)
        self.alias = dict(alias or {})
        self.output_types = [np.dtype(t) for t in output_types]
        names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
        outs = [f"y{i}" for i in range(len(output_types))]
        node = helper.make_node(op_type, names, outs, domain=DOMAIN, **attributes)
        infos = []
        for name, x in zip(names, inputs, strict=True):
            if x is None:
                continue
            kind = TensorProto.BFLOAT16 if isinstance(x, tuple) else ONNX_TYPE[x.dtype]
            rank = (x[1] if isinstance(x, tuple) else x).ndim
            infos.append(helper.make_tensor_value_info(name, kind, [None] * rank))
        graph = helper.make_graph(
            [node],
            op_type,
            infos,
            [
                helper.make_tensor_value_info(n, ONNX_TYPE[t], None)
                for n, t in zip(outs, self.output_types, strict=True)
            ],
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 24), helper.make_opsetid(DOMAIN, 1)], ir_version=11
        )
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other tests run beside this one
        options.log_severity_level = 4
        options.enable_cpu_mem_arena = False  # each output in memory of its own: a sanitizer sees a step past its end
        options.register_custom_ops_library(str(self.device.path))
        self.names, self.outs = names, outs
        self.session = ort.InferenceSession(model.SerializeToString(), options, providers=[self.device.provider])

    def __call__(self, *inputs: Any, output_shapes: Sequence[Sequence[int]] | None = None) -> list[np.ndarray]:
        """Runs the node. With `output_shapes` the outputs are allocated and poisoned; an aliased output shares (a copy
        of) its input's buffer, so that the caller's arrays stay as they are."""
        binding = self.session.io_binding()
        values: dict[int, ort.OrtValue] = {}
        results: list[ort.OrtValue] = []
        shared = {i: np.array(inputs[i], copy=True) for i in self.alias.values()}
        for i, (name, x) in enumerate(zip(self.names, inputs, strict=True)):
            if x is None:
                continue
            array = shared.get(i, x)
            if isinstance(array, tuple):
                bits = np.ascontiguousarray(array[1])
                values[i] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
            else:
                array = np.ascontiguousarray(array)
                shared[i] = array
                values[i] = self.device.value(array)
            binding.bind_ortvalue_input(name, values[i])
        if output_shapes is None and not self.alias:
            for name in self.outs:
                binding.bind_output(name, "cpu")
            self._run(binding)
            return [v.numpy() for v in binding.get_outputs()]
        for j, name in enumerate(self.outs):
            if j in self.alias:
                results.append(values[self.alias[j]])
            else:
                if output_shapes is None:
                    raise ValueError("output_shapes are needed beside aliased outputs")
                results.append(self.device.value(_poisoned(output_shapes[j], self.output_types[j])))
            binding.bind_ortvalue_output(name, results[-1])
        self._run(binding)
        return [np.array(value.numpy()) for value in results]  # a view would not keep the memory

    def _run(self, binding: ort.IOBinding) -> None:
        self.session.run_with_iobinding(binding)
        self.device.raise_device_error()


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """True when two arrays hold the same bytes (NaN equals NaN, -0 differs from 0)."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
