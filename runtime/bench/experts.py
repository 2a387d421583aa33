"""How many distinct experts the tokens of a verify choose: runs the routers of the verify graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from trigraph.custom_ops import library_path
from trigraph.exporter.package.manifest import Manifest
from trigraph.runtime.bench.cost import GraphCost
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.execution.sessions import session_options


class ExpertCounter:
    """The verify graph with the chosen expert ids as its only outputs, and its own state."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        self._nodes = GraphCost(folder / "verify.onnx").expert_nodes()
        self._most = manifest.max_pending  # tokens of a sequence
        if not self._nodes:
            return
        model = onnx.load(str(folder / "verify.onnx"), load_external_data=False)
        del model.graph.output[:]
        for ids in self._nodes.values():
            model.graph.output.add(name=ids).type.tensor_type.elem_type = onnx.TensorProto.INT64
        options = session_options(threads, manifest.weights_base(folder), library_path("cpu"))
        # ONNX Runtime would read all of them, a table of n-grams too.
        self._weights = MappedWeights(manifest.weight_paths(folder))
        self._initializers = self._weights.initializers(folder / "verify.onnx", model.graph)
        for name, value in self._initializers.items():
            options.add_initializer(name, value)
        self._session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self._state = {
            f"past.{tensor.name}": np.zeros([1 if isinstance(d, str) else d for d in tensor.dims], tensor.dtype)
            for tensor in manifest.state
            if "verify" in tensor.graphs
        }
        streams = manifest.config.streams
        if streams is not None and streams.ngrams is not None:
            before = np.full((1, streams.ngrams.size - 1), streams.ngrams.eos, np.int64)
            self._state["previous_ids"] = before

    def count(self, draws: Sequence[Sequence[int]]) -> Mapping[str, float]:
        """Mean number of distinct experts in a draw, by expert node; its sequences are as long as a verify takes."""
        if not self._nodes:
            return {}
        counts = dict.fromkeys(self._nodes, 0.0)
        for tokens in draws:
            pieces = [tokens[start : start + self._most] for start in range(0, len(tokens), self._most)]
            chosen = zip(*map(self._chosen, pieces), strict=True)
            for name, ids in zip(self._nodes, chosen, strict=True):
                counts[name] += len(np.unique(np.concatenate(ids))) / len(draws)
        return counts

    def _chosen(self, tokens: Sequence[int]) -> list[NDArray[np.int64]]:
        """The experts that the tokens of a new sequence choose, by expert node."""
        one = np.zeros(1, np.int32)
        inputs = {
            "input_ids": np.array(tokens, np.int64),
            "cu_seqlens": np.array([0, len(tokens)], np.int32),
            "past_lens": one,
            "accepted": one,
            "slots_in": one,
            "slots_out": one,
            "page_table": one[:, None],
            "ring_table": one[:, None],
            "positions": np.broadcast_to(np.arange(len(tokens), dtype=np.int32), (3, len(tokens))),
            **self._state,
        }
        asked = {port.name: inputs[port.name] for port in self._session.get_inputs()}
        outputs = self._session.run(list(self._nodes.values()), asked)
        return [ids.reshape(-1) for ids in outputs]
