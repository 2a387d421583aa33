"""SplitExperts: the bits of GroupedExpertFFN, wherever experts lie.

tests/cuda/test_cuda.py runs this with the library of the emulator, tools/gpu.py on a GPU.
"""

import ctypes
import threading
import time
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper

from support.operators.expert_layer import SHAPES, Layer, name_of
from support.operators.row_bits import portable_kernels
from support.operators.run import ONNX_TYPE, device, provider, same_bits
from trigraph.custom_ops import DOMAIN, host_experts
from trigraph.runtime.device.cuda.library import CudaLibrary
from trigraph.runtime.device.parts.experts import CUDA_DOMAIN, SPLIT

Arrays = dict[str, Any]
PLAIN = ["x", "ids", "weights", "gate", "down", "up", "shared", "shared_gate"]
HELD = ["slots", "gate_slots", "down_slots", "up_slots"]


def model_of(domain: str, op_type: str, inputs: Arrays, names: list[str], **attributes: Any) -> onnx.ModelProto:
    """One node, whose weights are inputs too."""
    taken = [helper.make_tensor_value_info(name, ONNX_TYPE[x.dtype], [None] * x.ndim) for name, x in inputs.items()]
    made = [helper.make_tensor_value_info("y", ONNX_TYPE[np.dtype(np.float32)], None)]
    node = helper.make_node(
        op_type, [name if name in inputs else "" for name in names], ["y"], domain=domain, **attributes
    )
    graph = helper.make_graph([node], "part", taken, made)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def run(model: onnx.ModelProto, library: str, inputs: Arrays, host: int | None = None) -> NDArray[Any]:
    """Two runs, and what kernels report. `host`: the address of functions in the CPU library's place."""
    functions = CudaLibrary(device("cuda").path)
    functions.use_host_experts(host or host_experts())
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(device(library).path))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=[provider(library)])
    first, second = (np.asarray(session.run(["y"], inputs)[0]) for _ in range(2))
    functions.wait()
    assert same_bits(first, second)
    return second


def plain_inputs(layer: Layer, tokens: int, shared: bool) -> Arrays:
    """Of GroupedExpertFFN."""
    x, ids, weights = layer.tokens(tokens)
    inputs = dict(x=x, ids=ids, weights=weights, gate=layer.gate, down=layer.down)
    if layer.up is not None:
        inputs["up"] = layer.up
    if shared:
        inputs["shared"], inputs["shared_gate"] = layer.shared(tokens)
    return inputs


def split_inputs(inputs: Arrays, held: int, seed: int) -> Arrays:
    """The same for SplitExperts, of which the device holds some, in any order; a slot more than it needs."""
    experts = len(inputs["gate"])
    chosen = np.random.default_rng(seed).permutation(experts)[:held]
    slots = np.full(experts, -1, np.int32)
    slots[chosen] = np.arange(held)
    stacks = {}
    if held:
        order = np.append(chosen, chosen[:1]) if held < experts else chosen
        stacks = {f"{name}_slots": inputs[name][order] for name in ("gate", "down", "up") if name in inputs}
    return inputs | {"slots": slots} | stacks


@pytest.mark.parametrize("kind", ["int8", "float32"])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if "BF16" not in shape.values()], ids=name_of)
def test_bits_do_not_depend_on_where_experts_are(shape: dict[str, Any], kind: str) -> None:
    layer = Layer(**shape, activations=kind)
    for tokens in (1, 3, 40):
        inputs = plain_inputs(layer, tokens, shared=tokens == 3)
        with portable_kernels():
            expected = run(model_of(DOMAIN, "GroupedExpertFFN", inputs, PLAIN, **layer.attributes), "cpu", inputs)
        for held in sorted({0, 1, layer.experts // 2, layer.experts}):
            given = split_inputs(inputs, held, seed=tokens)
            model = model_of(CUDA_DOMAIN, SPLIT, given, PLAIN + HELD, threads=2, **layer.attributes)
            assert same_bits(run(model, "cuda", given), expected), (tokens, held)


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[-1]], ids=name_of)
@pytest.mark.parametrize("streamed", ["", "0", "1"])
def test_weights_that_go_to_the_device(shape: dict[str, Any], streamed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a long step, a few experts at a time; or as measured."""
    monkeypatch.setenv("TRIGRAPH_STREAM_EXPERTS", streamed)
    if not streamed:
        monkeypatch.delenv("TRIGRAPH_STREAM_EXPERTS")
    layer = Layer(**shape, activations="int8")
    inputs = plain_inputs(layer, 70, shared=True)
    with portable_kernels():
        expected = run(model_of(DOMAIN, "GroupedExpertFFN", inputs, PLAIN, **layer.attributes), "cpu", inputs)
    for held in (0, 1, layer.experts - 1):
        given = split_inputs(inputs, held, seed=held)
        places = given["slots"].copy()
        for staged in (1, 1 << 20):
            attributes = layer.attributes | {"places": places.ctypes.data, "batch_bytes": staged}
            model = model_of(CUDA_DOMAIN, SPLIT, given, PLAIN + HELD, threads=2, **attributes)
            assert same_bits(run(model, "cuda", given), expected), (held, staged)


@pytest.mark.parametrize("held", [0, 2])
@pytest.mark.parametrize("tokens", [5, 70])
def test_a_bad_expert_id_is_an_error(held: int, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where weights go to the device."""
    monkeypatch.setenv("TRIGRAPH_STREAM_EXPERTS", "1")
    layer = Layer(**SHAPES[0])
    inputs = split_inputs(plain_inputs(layer, tokens, shared=False), held, seed=1)
    inputs["ids"][3, 1] = 8
    places = inputs["slots"].copy()
    model = model_of(CUDA_DOMAIN, SPLIT, inputs, PLAIN + HELD, places=places.ctypes.data, **layer.attributes)
    with pytest.raises(Exception, match=r"holds expert 8 at token 3, slot 1: input gate has 8 experts"):
        run(model, "cuda", inputs)


def test_a_host_without_memory_is_an_error() -> None:
    """And the next step is right."""
    names = ("make", "drop", "open", "gather", "row_seconds")
    functions = dict(zip(names, (ctypes.c_void_p * len(names)).from_address(host_experts()), strict=True))

    def answer(mail: ctypes.c_uint64) -> None:
        while mail.value <= 1:
            time.sleep(0.001)
        mail.value = 1  # kHostFailed

    def open_mailbox(step: int) -> None:
        mail = ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(step + 48).value)
        threading.Thread(target=answer, args=(mail,)).start()

    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(open_mailbox)
    functions["open"] = ctypes.cast(callback, ctypes.c_void_p).value
    failing = (ctypes.c_void_p * len(names))(*functions.values())
    layer = Layer(**SHAPES[0])
    inputs = plain_inputs(layer, 2, shared=False)
    given = split_inputs(inputs, 2, seed=1)
    model = model_of(CUDA_DOMAIN, SPLIT, given, PLAIN + HELD, **layer.attributes)
    with pytest.raises(Exception, match="the host has no memory left"):
        run(model, "cuda", given, ctypes.addressof(failing))
    with portable_kernels():
        expected = run(model_of(DOMAIN, "GroupedExpertFFN", inputs, PLAIN, **layer.attributes), "cpu", inputs)
    assert same_bits(run(model, "cuda", given), expected)


def test_stacks_that_do_not_fit_are_errors() -> None:
    layer = Layer(**SHAPES[0])
    good = split_inputs(plain_inputs(layer, 2, shared=False), 2, seed=1)
    for name, bad, words in (
        ("slots", good["slots"][:3], "slots has shape"),
        ("gate_slots", good["gate_slots"][:, :8], "gate_slots has shape"),
        ("down_slots", good["down_slots"][:1], "down_slots has shape"),
        ("gate_slots", np.repeat(good["gate_slots"], 4, 0), "more slots than there are experts"),
    ):
        inputs = good | {name: bad}
        model = model_of(CUDA_DOMAIN, SPLIT, inputs, PLAIN + HELD, **layer.attributes)
        with pytest.raises(Exception, match=words):
            run(model, "cuda", inputs)
