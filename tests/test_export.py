"""The exported graphs: the public contract, static types, and results against the NumPy specification."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

from support.random_gguf import Architecture, Item, write_random
from trigraph.custom_ops import DOMAIN
from trigraph.exporter import ExportOptions, export, read_manifest
from trigraph.models.config import ModelConfig
from trigraph.models.model import Model, open_model
from trigraph.models.reference import Reference

ARCHITECTURES: tuple[Architecture, ...] = ("qwen35", "qwen35moe", "qwen3next")
K, PAGE = 8, 64
TYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.INT64: "int64",
    TensorProto.INT32: "int32",
}
Interface = dict[str, tuple[str, tuple[int | str, ...]]]


def interface(values: Sequence[onnx.ValueInfoProto]) -> Interface:
    """Names with types and dimensions."""
    found: Interface = {}
    for value in values:
        tensor = value.type.tensor_type
        found[value.name] = (TYPES[tensor.elem_type], tuple(dim.dim_param or dim.dim_value for dim in tensor.shape.dim))
    return found


def state_of(config: ModelConfig, kv: str, graph: str) -> Interface:
    """The state tensors of a graph, as the contract lists them."""
    pages = (kv, ("pages", PAGE, config.kv_heads, config.head_dim))
    state: Interface = {}
    if graph != "draft":
        heads, dim = config.gdn_v_heads, config.gdn_head_dim
        for layer, recurrent in enumerate(config.recurrent):
            if recurrent:
                state[f"gdn.{layer}.state"] = ("float32", ("slots", heads, dim, dim))
                state[f"gdn.{layer}.window"] = ("float32", ("slots", 3 + K, config.gdn_channels))
                state[f"gdn.{layer}.gates"] = ("float32", ("slots", K, 2 * heads))
            else:
                state |= {f"kv.{layer}.key": pages, f"kv.{layer}.value": pages}
    if graph != "verify" and config.mtp_layers:
        state |= {"mtp.key": pages, "mtp.value": pages}
    return state


def contract(config: ModelConfig, kv: str, graph: str) -> tuple[Interface, Interface]:
    """Inputs and outputs of a graph, as the contract lists them."""
    inputs: Interface = {
        "input_ids": ("int64", ("T",)),
        "cu_seqlens": ("int32", ("S+1",)),
        "past_lens": ("int32", ("S",)),
        "page_table": ("int32", ("S", "P")),
    }
    rows = "T" if graph == "verify" else "S"
    outputs: Interface = {"tokens": ("int64", (rows,)), "hidden": ("float32", (rows, config.hidden))}
    if graph == "draft":
        inputs["prev_hidden"] = ("float32", ("T", config.hidden))
        outputs["probability"] = ("float32", ("S",))
    else:
        inputs |= dict.fromkeys(("accepted", "slots_in", "slots_out"), ("int32", ("S",)))
        outputs["logits"] = ("float32", (rows, config.vocab))
    if graph == "prefill":
        inputs["prev_hidden"] = ("float32", ("S", config.hidden))
    state = state_of(config, kv, graph)
    inputs |= {f"past.{name}": kind for name, kind in state.items()}
    outputs |= {f"present.{name}": kind for name, kind in state.items()}
    return inputs, outputs


@pytest.fixture(scope="module", params=ARCHITECTURES)
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    source = write_random(folder / "model.gguf", request.param, preset="nano")
    export(source, folder / "package", ExportOptions(kv_type="f32", activations="float32"))
    return folder / "package"


def load(package: Path, name: str) -> onnx.ModelProto:
    return onnx.load(package / f"{name}.onnx", load_external_data=False)


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_contract(architecture: Architecture, kv_type: str, tmp_path: Path) -> None:
    source = write_random(tmp_path / "model.gguf", architecture, preset="nano")
    manifest = export(source, tmp_path / "package", ExportOptions(kv_type=kv_type, activations="float32"))
    kv = {"f16": "float16", "f32": "float32"}[kv_type]
    listed: dict[str, Interface] = {"prefill": {}, "draft": {}, "verify": {}}
    for tensor in manifest.state:
        for graph in tensor.graphs:
            listed[graph][tensor.name] = (tensor.dtype, tensor.dims)
    for name in ("prefill", "draft", "verify"):
        graph = load(tmp_path / "package", name).graph
        inputs, outputs = contract(manifest.config, kv, name)
        assert interface(graph.input) == inputs
        assert interface(graph.output) == outputs
        assert listed[name] == state_of(manifest.config, kv, name)


def test_without_a_head(tmp_path: Path) -> None:
    source = write_random(tmp_path / "model.gguf", "qwen35", preset="nano", mtp=False)
    manifest = export(source, tmp_path / "package")
    assert set(manifest.graphs) == {"prefill", "verify"} and manifest.draft_vocab is None
    assert not (tmp_path / "package/draft.onnx").exists()
    graph = load(tmp_path / "package", "prefill").graph
    assert (interface(graph.input), interface(graph.output)) == contract(manifest.config, "float16", "prefill")


@pytest.mark.parametrize("name", ["prefill", "draft", "verify"])
def test_every_value_is_typed(package: Path, name: str) -> None:
    """Every value has type and shape, symbolic in the contract's dimensions only, as inference finds it too."""
    model = load(package, name)
    graph = model.graph
    stated = interface([*graph.value_info, *graph.output])
    for node in graph.node:
        for output in node.output:
            symbols = {dim for dim in stated[output][1] if isinstance(dim, str)}
            assert symbols <= {"T", "S", "S+1", "S+T", "P", "slots", "pages"}

    # Inference starts from what custom nodes make.
    native = {output for node in graph.node if node.domain != DOMAIN for output in node.output}
    kept = [value for value in graph.value_info if value.name not in native]
    del graph.value_info[:]
    graph.value_info.extend(kept)
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    for name, (dtype, dims) in interface(inferred.graph.value_info).items():
        assert (dtype, len(dims)) == (stated[name][0], len(stated[name][1])), name
        fixed = [(dim, own) for dim, own in zip(dims, stated[name][1], strict=True) if isinstance(dim, int) and dim]
        assert all(dim == own for dim, own in fixed), name


def test_names(package: Path) -> None:
    names = [node.name for node in load(package, "verify").graph.node]
    assert len(set(names)) == len(names)
    assert {"embed", "blk.3.attn.qkv", "blk.3.attn.kv_write", "blk.3.attn.mix", "blk.0.gdn.mix", "output"} <= set(names)


@pytest.mark.parametrize("name", ["prefill", "verify", "draft"])
def test_onnxruntime_only_copies(package: Path, name: str) -> None:
    """Its arithmetic depends on the processor; all that computes is an operator of ours."""
    graph = load(package, name).graph
    native = [node.op_type for node in graph.node if node.domain != DOMAIN]
    assert set(native) <= {"Concat", "Gather"}
    assert native.count("Concat") <= 1  # of the MTP head


@pytest.mark.parametrize("name", ["prefill", "verify", "draft"])
def test_nodes_of_a_layer(package: Path, name: str) -> None:
    """About ten nodes a layer: each costs a host some microseconds."""
    graph = load(package, name).graph
    layers = {"prefill": 4, "verify": 4, "draft": 1}[name]
    assert len(graph.node) <= 11 * layers + 15


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_onnx_checker(architecture: Architecture, tmp_path: Path) -> None:
    """On a package with copied weights: the checker, unlike ONNX Runtime, refuses files with several hard links."""
    source = write_random(tmp_path / "model.gguf", architecture, preset="nano")
    manifest = export(source, tmp_path / "package", ExportOptions(weights="copy"))
    for name in manifest.graphs:
        onnx.checker.check_model(tmp_path / "package" / f"{name}.onnx")


def initializers(package: Path, name: str) -> dict[str, tuple[Any, ...]]:
    """For each external initializer its file, offset, length, type and dimensions."""
    found = {}
    for tensor in load(package, name).graph.initializer:
        place = {entry.key: entry.value for entry in tensor.external_data}
        if place:
            dims = tuple(tensor.dims)
            found[tensor.name] = (place["location"], int(place["offset"]), int(place["length"]), tensor.data_type, dims)
    return found


def test_weights_are_where_the_file_has_them(package: Path) -> None:
    """Each initializer is exactly one tensor's bytes, and the graphs agree on them."""
    model = open_model(package / "model.gguf")
    used: set[str] = set()
    places: dict[str, tuple[Any, ...]] = {}
    for name in ("prefill", "draft", "verify"):
        for weight, place in initializers(package, name).items():
            tensor = model.tensor(weight)
            assert place[:3] == ("model.gguf", tensor.offset, tensor.nbytes)
            assert places.setdefault(weight, place) == place
            used.add(weight)
    assert used == set(model.tensors)


def test_draft_vocab_is_a_slice(tmp_path: Path) -> None:
    source = write_random(tmp_path / "model.gguf", "qwen35", preset="nano", dtype="Q8_0", tied=True)
    manifest = export(source, tmp_path / "package", ExportOptions(draft_vocab=100))
    table = open_model(source).tensor("token_embd.weight")
    found = initializers(tmp_path / "package", "draft")
    assert manifest.draft_vocab == 100
    assert found["token_embd.weight"][1:3] == (table.offset, table.nbytes)
    assert found["token_embd.weight[:100]"][1:] == (
        table.offset,
        100 * table.row_bytes,
        TensorProto.UINT8,
        (100, table.row_bytes),
    )


def test_fused_experts(tmp_path: Path) -> None:
    """Gate and up in one tensor: the input for up is absent."""
    source = write_random(tmp_path / "model.gguf", "qwen35moe", preset="nano", fused=True)
    export(source, tmp_path / "package")
    experts = [node for node in load(tmp_path / "package", "verify").graph.node if node.op_type == "GroupedExpertFFN"]
    assert experts and all(node.input[5] == "" for node in experts)
    assert all("up_type" not in {attribute.name for attribute in node.attribute} for node in experts)


# Execution


class Host:
    """A minimal host: one pool of state, every tensor bound as input and as output."""

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


def close(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)


def own_head(item: Item) -> list[Item]:
    """Give the MTP head an embedding and an output matrix of its own, and leave it to the trunk's norm."""
    if item.name == "blk.4.nextn.enorm.weight":
        names = ("embed_tokens", "shared_head_head")
        return [item, *(Item(f"blk.4.nextn.{name}.weight", (320, 64), "matrix", 1 / 8) for name in names)]
    return [] if "shared_head_norm" in item.name else [item]


def write_case(case: str, folder: Path) -> Model:
    """Write the files of a case and export them to folder / "package"."""
    path, mtp = folder / "model.gguf", None
    if case == "own head":
        write_random(path, "qwen35", preset="nano", edit=own_head)
    elif case == "fused, tied, Q8_0":
        write_random(path, "qwen35moe", preset="nano", fused=True, tied=True, dtype="Q8_0")
    elif case == "k-quants":
        types = {
            "*ffn_down*": "Q6_K",
            "*ffn_up*": "Q5_K",
            "token_embd*": "Q5_K",
            "output*": "Q6_K",
            "*ssm_out*": "Q8_0",
        }
        write_random(path, "qwen3next", preset="blocks", dtype="Q4_K", types=types)
    elif case == "separate head":
        write_random(path, "qwen35", preset="nano", mtp=False)
        mtp = write_random(folder / "mtp-model.gguf", "qwen35", preset="nano", mtp="only")
    elif case == "listed layers, split":
        path = write_random(
            path, "qwen35", preset="nano", recurrent=[False, True, True, False], split_tensors=20, dtype="F16"
        )
    else:
        write_random(path, case, preset="nano")  # type: ignore[arg-type]
    export(path, folder / "package", ExportOptions(kv_type="f32", activations="float32", mtp=mtp))
    return open_model(path, mtp)


@pytest.mark.parametrize(
    "case", [*ARCHITECTURES, "own head", "fused, tied, Q8_0", "k-quants", "separate head", "listed layers, split"]
)
def test_against_the_specification(case: str, tmp_path: Path, operator_library: Path) -> None:
    """Two ragged sequences: prefill in two chunks, a verify, a verify that commits part of it, a chain of drafts."""
    model = write_case(case, tmp_path)
    reference, host = Reference(model), Host(tmp_path / "package", operator_library)
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, model.config.vocab, size) for size in (30, 21)]
    hidden, logits = zip(*(reference.trunk(text) for text in texts), strict=True)
    tables = np.array([[3, 5], [1, 7]])
    slots = {"slots_in": [2, 0], "slots_out": [2, 0]}

    def step(graph: str, starts: Sequence[int], counts: Sequence[int], accepted: Sequence[int]) -> dict[str, Any]:
        ids = np.concatenate([text[a : a + n] for text, a, n in zip(texts, starts, counts, strict=True)])
        before = [h[a - 1] if a else np.zeros_like(h[0]) for h, a in zip(hidden, starts, strict=True)]
        cu = np.cumsum([0, *counts])
        extra = {"prev_hidden": np.array(before)} if graph == "prefill" else {}
        return host.run(
            graph,
            input_ids=ids,
            cu_seqlens=cu,
            past_lens=starts,
            accepted=accepted,
            page_table=tables,
            **slots,
            **extra,
        )

    step("prefill", (0, 0), (5, 9), (0, 0))
    out = step("prefill", (5, 9), (12, 1), (0, 0))
    for s, end in enumerate((17, 10)):
        close(out["logits"][s], logits[s][end - 1])
        close(out["hidden"][s], hidden[s][end - 1])

    for starts, counts, accepted in (
        ((17, 10), (8, 3), (0, 0)),
        ((20, 13), (2, 8), (3, 3)),
        ((20, 14), (1, 1), (0, 1)),
    ):
        out = step("verify", starts, counts, accepted)
        rows = np.concatenate([logits[s][a : a + n] for s, (a, n) in enumerate(zip(starts, counts, strict=True))])
        close(out["logits"], rows)
        np.testing.assert_array_equal(out["tokens"], out["logits"].argmax(-1))

    # The head's entries of 17 and 10 tokens stand from the prefill; catch up to position 20 and 14, then chain.
    ends, kept = (20, 14), (17, 10)
    ids = np.concatenate([text[a:b] for text, a, b in zip(texts, kept, ends, strict=True)])
    before = np.concatenate([h[a - 1 : b - 1] for h, a, b in zip(hidden, kept, ends, strict=True)])
    cu = np.cumsum([0, *(b - a for a, b in zip(kept, ends, strict=True))])
    expected = []
    for text, h, end in zip(texts, hidden, ends, strict=True):
        previous = np.concatenate([np.zeros_like(h[:1]), h[: end - 1]])
        expected.append(reference.draft(text[:end], previous, 4))
    past = np.array(kept)
    for index in range(4):
        out = host.run("draft", input_ids=ids, prev_hidden=before, cu_seqlens=cu, past_lens=past, page_table=tables)
        for s, (tokens, rows) in enumerate(expected):
            assert out["tokens"][s] == tokens[index]
            top = np.exp(rows[index] - rows[index].max())
            close(out["probability"][s], 1 / top.sum())
        past = np.array(ends) + index
        ids, before, cu = out["tokens"], out["hidden"], np.arange(3)


def test_without_a_head_runs(tmp_path: Path, operator_library: Path) -> None:
    """`prev_hidden` stays an input of a prefill that has no use for it."""
    source = write_random(tmp_path / "model.gguf", "qwen35moe", preset="nano", mtp=False)
    export(source, tmp_path / "package", ExportOptions(kv_type="f16", activations="float32"))
    model, host = open_model(source), Host(tmp_path / "package", operator_library)
    ids = np.arange(9)
    one: dict[str, Any] = {"page_table": [[0]], "past_lens": [0], "accepted": [0], "slots_in": [0], "slots_out": [0]}
    hidden = np.zeros((1, model.config.hidden))
    out = host.run("prefill", input_ids=ids, cu_seqlens=[0, 9], prev_hidden=hidden, **one)
    np.testing.assert_allclose(out["logits"][0], Reference(model).trunk(ids)[1][-1], rtol=0, atol=0.02)


def test_draft_among_the_first_tokens(tmp_path: Path, operator_library: Path) -> None:
    """`draft_vocab` takes the likeliest of the first rows, and its probability among them."""
    source = write_random(tmp_path / "model.gguf", "qwen35", preset="nano")
    model = open_model(source)
    inputs: dict[str, Any] = {
        "input_ids": [5, 6, 7],
        "prev_hidden": np.random.default_rng(0).standard_normal((3, model.config.hidden)),
        "cu_seqlens": [0, 3],
        "past_lens": [0],
        "page_table": [[0]],
    }
    _, logits = Reference(model).mtp([5, 6, 7], np.asarray(inputs["prev_hidden"]))
    for vocab in (1, 50, model.config.vocab):
        export(source, tmp_path / "package", ExportOptions(kv_type="f32", activations="float32", draft_vocab=vocab))
        out = Host(tmp_path / "package", operator_library).run("draft", **inputs)
        among = np.exp(logits[-1, :vocab])
        assert out["tokens"][0] == among.argmax()
        close(out["probability"], among.max(keepdims=True) / among.sum())
