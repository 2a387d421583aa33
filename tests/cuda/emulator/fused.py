"""Nodes that the CUDA library has as one: the bits of the portable kernels of each, and what is left as it was.

tests/cuda/test_cuda.py runs this with the library of the emulator, tools/gpu.py on a GPU.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from support.operators.attention_step import Heads, make_step
from support.operators.block_weights import activations, weights
from support.operators.fusion import check, model_of, node, run, session_of
from support.operators.run import same_bits
from trigraph.runtime.device.cuda.fusion import fuse

MIXED = ("F32", "F32", "Q8_0", "Q4_K")
"""Router, gate of the shared expert, and its matrices."""


def products(types: Sequence[str], kind: str, x: str = "normed") -> onnx.NodeProto:
    """The BlockMatMul with a weight of each type."""
    names = [f"w{i}" for i in range(len(types))]
    return node(
        "BlockMatMul", " ".join([x, *names]), " ".join(f"y{i}" for i in range(len(types))), types=",".join(types),
        activations=kind,
    )  # fmt: skip


def matrices(types: Sequence[str], rows: Sequence[int], width: int) -> dict[str, Any]:
    """The weights of `products`."""
    return {f"w{i}": weights(type, n, width) for i, (type, n) in enumerate(zip(types, rows, strict=True))}


@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize(
    ("types", "width"),
    [
        (MIXED, 512),
        (MIXED, 2560),  # the widest norm that products make
        (MIXED, 5120),
        (("Q6_K", "Q5_K"), 768),
        (("F32",), 27),
        (("IQ4_XS", "Q8_0"), 256),  # one that shares no launch
    ],
)
def test_a_norm_and_its_products(types: tuple[str, ...], width: int, kind: str) -> None:
    """Rows that some weight meets as int8 are prepared by the norm."""
    rng = np.random.default_rng(width)
    fused = ["NormedBlockMatMul"] if kind == "int8" and types != ("F32",) else ["RMSNorm", "BlockMatMul"]
    for rows in (1, 2, 3, 5, 8, 9, 17):
        inputs = {
            "x": activations(rows, width),
            "residual": rng.standard_normal((rows, width), dtype=np.float32),
            "norm": rng.standard_normal(width, dtype=np.float32),
            **matrices(types, (37, 1, 70, 9)[: len(types)], width),
        }
        outputs = dict.fromkeys(["normed", "sum", *(f"y{i}" for i in range(len(types)))], np.float32)
        nodes = [node("RMSNorm", "x norm residual", "normed sum", eps=1e-6), products(types, kind)]
        check(nodes, inputs, outputs, fused)
        del outputs["normed"], outputs["sum"]  # nobody reads them
        check(nodes, inputs, outputs, fused)
        del inputs["residual"]
        nodes[0] = node("RMSNorm", "x norm", "normed", eps=1e-6)
        check(nodes, inputs, outputs, fused)
        check(nodes, inputs, {"normed": np.float32} | outputs, fused)


@pytest.mark.parametrize(
    ("types", "width"), [(("Q5_K",), 4096), (("Q8_0", "Q8_0"), 544), (("Q6_K", "Q4_K", "Q8_0"), 768)]
)
def test_rows_that_a_launch_quantises(types: tuple[str, ...], width: int) -> None:
    """More than blocks quantise for themselves."""
    for rows in (4, 5, 7, 8, 9):
        inputs = {"x": activations(rows, width), **matrices(types, (70, 1, 37)[: len(types)], width)}
        outputs = dict.fromkeys([f"y{i}" for i in range(len(types))], np.float32)
        check([products(types, "int8", "x")], inputs, outputs, ["BlockMatMul"])


def test_norms_side_by_side() -> None:
    for rows in (1, 4, 8, 9):
        inputs = {
            "x": activations(rows, 300),
            "other": activations(rows, 212) * 3,
            "norm": activations(1, 300)[0],
            "other_norm": activations(1, 212)[0],
            "w0": weights("Q8_0", 40, 512),
        }
        nodes = [
            node("JoinedRMSNorm", "x norm other other_norm", "normed", eps=1e-5),
            products(("Q8_0",), "int8"),
        ]
        for outputs in ({"normed": np.float32, "y0": np.float32}, {"y0": np.float32}):
            check(nodes, inputs, outputs, ["NormedBlockMatMul"])


def test_rows_wider_than_a_block() -> None:
    """Which are normed in global memory."""
    for rows in (1, 3):
        inputs = {"x": activations(rows, 8448), "norm": np.linspace(0.5, 2, 8448, dtype=np.float32)}
        inputs["w0"] = weights("Q4_K", 5, 8448)
        nodes = [node("RMSNorm", "x norm", "normed", eps=1e-5), products(("Q4_K",), "int8")]
        for outputs in ({"normed": np.float32, "y0": np.float32}, {"y0": np.float32}):
            check(nodes, inputs, outputs, ["NormedBlockMatMul"])


def experts_case(rows: int, *, shared_ffn: int, types: tuple[str, str, str], k: int = 4) -> tuple[list[Any], Any]:
    """The nodes of routed experts and of the shared one, and their inputs."""
    width, ffn, count = 512, 256, 9
    gate_type, down_type, shared_type = types
    rng = np.random.default_rng(rows)
    inputs = {
        "x": activations(rows, width),
        "ids": np.array([rng.permutation(count)[:k] for _ in range(rows)], np.int64),
        "weights": rng.random((rows, k), dtype=np.float32),
        "gate": np.stack([weights(gate_type, ffn, width) for _ in range(count)]),
        "up": np.stack([weights(gate_type, ffn, width) for _ in range(count)]),
        "down": np.stack([weights(down_type, width, ffn) for _ in range(count)]),
        "hidden": activations(rows, shared_ffn),
        "shared_up": activations(rows, shared_ffn) * 2,
        "logit": rng.standard_normal((rows, 1), dtype=np.float32),
        "shared_down": weights(shared_type, width, shared_ffn),
    }
    nodes = [
        node("GatedBlockMatMul", "hidden shared_up shared_down", "shared", type=shared_type, activations="int8"),
        node(
            "GroupedExpertFFN", "x ids weights gate down up shared logit", "y", gate_type=gate_type, up_type=gate_type,
            down_type=down_type, activations="int8",
        ),
    ]  # fmt: skip
    return nodes, inputs


@pytest.mark.parametrize(
    ("types", "shared_ffn"),
    [
        (("Q4_K", "Q6_K", "Q8_0"), 256),
        (("Q4_K", "Q5_K", "Q6_K"), 512),  # of another width
        (("IQ4_XS", "Q6_K", "Q8_0"), 256),  # types that share no launch
        (("Q4_K", "Q6_K", "F16"), 256),
    ],
)
def test_routed_and_shared_experts(types: tuple[str, str, str], shared_ffn: int) -> None:
    for rows in (1, 2, 5, 8, 16, 33):
        nodes, inputs = experts_case(rows, shared_ffn=shared_ffn, types=types)
        check(nodes, inputs, {"y": np.float32}, ["MixtureOfExperts"])


@pytest.mark.parametrize("types", [("Q4_K", "Q6_K", "Q8_0"), ("IQ4_XS", "Q6_K", "Q8_0")])
def test_experts_behind_a_norm(types: tuple[str, str, str]) -> None:
    """Experts and a product that read the rows of one norm, prepared once."""
    for rows in (1, 2, 4, 7, 8, 16, 33):
        nodes, inputs = experts_case(rows, shared_ffn=256, types=types)
        inputs |= {"raw": inputs.pop("x"), "norm": np.linspace(0.5, 2, 512, dtype=np.float32)}
        inputs["w0"] = weights("Q6_K", 40, 512)
        nodes.insert(0, node("RMSNorm", "raw norm", "x", eps=1e-6))
        nodes.append(products(("Q6_K",), "int8", "x"))
        outputs = dict.fromkeys(("x", "y", "y0"), np.float32)
        check(nodes, inputs, outputs, ["NormedBlockMatMul", "MixtureOfExperts"])


@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize("types", [("Q4_K", "Q6_K", "Q8_0"), ("IQ4_XS", "Q6_K", "Q8_0")])
def test_experts_choose_themselves(types: tuple[str, str, str], normalize: int) -> None:
    """Their router is a part of them: equal logits, infinite ones and, where it does not count, what is no number."""
    for rows in (1, 2, 5, 8, 16, 33):
        nodes, inputs = experts_case(rows, shared_ffn=256, types=types)
        del inputs["ids"], inputs["weights"]
        logits = np.random.default_rng(rows).integers(-3, 3, (rows, 9)).astype(np.float32)
        logits[0, :3] = -np.inf, 1, 0
        inputs["logits"] = logits
        nodes.insert(0, node("Router", "logits", "ids weights", k=4, normalize=normalize))
        check(nodes, inputs, {"y": np.float32}, ["MixtureOfExperts"])


def test_a_router_that_others_read_stays() -> None:
    nodes, inputs = experts_case(2, shared_ffn=256, types=("Q4_K", "Q6_K", "Q8_0"))
    del inputs["ids"], inputs["weights"]
    inputs["logits"] = np.random.default_rng(2).random((2, 9), dtype=np.float32)
    nodes.insert(0, node("Router", "logits", "ids weights", k=4, normalize=1))
    check(nodes, inputs, {"ids": np.int64, "y": np.float32}, ["Router", "MixtureOfExperts"])


def test_an_expert_chosen_twice() -> None:
    nodes, inputs = experts_case(3, shared_ffn=256, types=("Q4_K", "Q6_K", "Q8_0"))
    inputs["ids"][:, 2] = inputs["ids"][:, 0]
    check(nodes, inputs, {"y": np.float32}, ["MixtureOfExperts"])


def test_a_bad_expert_is_an_error_and_the_next_step_is_right() -> None:
    """Counters of blocks are as before."""
    nodes, inputs = experts_case(2, shared_ffn=256, types=("Q4_K", "Q6_K", "Q8_0"))
    model = model_of(nodes, inputs, {"y": np.float32})
    fuse(model)
    session = session_of(model, "cuda")
    (before,) = run(session, inputs, ["y"])
    bad = inputs["ids"].copy()
    bad[1, 2] = 9
    with pytest.raises(Exception, match="input ids holds expert 9 at token 1, slot 2: input gate has 9 experts"):
        run(session, inputs | {"ids": bad}, ["y"])
    assert same_bits(run(session, inputs, ["y"])[0], before)


def test_what_somebody_else_reads_stays() -> None:
    """A shared expert's output that is a result, the experts it belongs to, and a norm that nobody meets as int8."""
    nodes, inputs = experts_case(2, shared_ffn=256, types=("Q4_K", "Q6_K", "Q8_0"))
    nodes.insert(0, node("RMSNorm", "raw norm", "x", eps=1e-6))
    inputs |= {"raw": inputs.pop("x"), "norm": np.ones(512, np.float32)}
    outputs = {"y": np.float32, "shared": np.float32}
    check(nodes, inputs, outputs, ["RMSNorm", "GatedBlockMatMul", "GroupedExpertFFN"])


@pytest.mark.parametrize("sections", [None, (3, 3, 2)], ids=["text", "positions on three axes"])
def test_entries_and_last_rows(sections: tuple[int, int, int] | None) -> None:
    heads = Heads(sections=sections)
    step = make_step(heads, [3, 1, 5], [20, 0, 7])
    names = ["k", "v", "norm", "past_key", "past_value", "cu_seqlens", "past_lens", "table", "positions"]
    inputs = dict(zip(names, step.write, strict=False)) | {"x": activations(9, 48)}
    check(
        [
            node("PagedKVWrite", " ".join(names[: len(step.write)]), "key value", **heads.attributes),
            node("LastRows", "cu_seqlens past_lens x", "starts past last_x"),
        ],
        inputs,
        {"key": np.float16, "value": np.float16, "starts": np.int32, "past": np.int32, "last_x": np.float32},
        ["PagedKVWriteLastRows"],
    )


def test_lengths_that_a_node_makes_are_not_given() -> None:
    """A launch may read those of the graph before the one ahead is done."""
    heads = Heads()
    step = make_step(heads, [3, 1, 5], [20, 0, 7])
    names = ["q_gate", "norm", "key", "value", "cu_seqlens", "past_lens", "table"]
    inputs = dict(zip(names, step.attend(step.past_key, step.past_value), strict=False)) | {"x": activations(9, 48)}
    nodes = [
        node("PagedAttention", " ".join(names), "y", **heads.attributes),
        node("LastRows", "cu_seqlens past_lens x", "starts past last_x"),
        node("PagedAttention", "q_gate norm key value starts past table", "last_y", **heads.attributes),
    ]
    model = model_of(nodes, inputs, {"y": np.float32, "last_y": np.float32})
    fuse(model)
    given = [[a.i for a in node.attribute if a.name == "given"] for node in model.graph.node]
    assert given == [[1], [], []]
