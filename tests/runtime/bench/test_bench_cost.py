"""What the benchmark divides by: bytes and products counted by hand, and the roofline."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from support.machine import MACHINE
from support.models.packages import Packages
from trigraph.custom_ops.cost import Cost, Node, Tensor, Workload
from trigraph.custom_ops.registry import operators
from trigraph.exporter import read_manifest
from trigraph.models.errors import TrigraphError
from trigraph.runtime.bench.cost import GraphCost
from trigraph.runtime.bench.experts import ExpertCounter
from trigraph.runtime.bench.roofline import Roofline
from trigraph.runtime.bench.sample import Case, Sample, Timing

ROOT = Path(__file__).parents[3]
TOKENS, SEQUENCES, CONTEXT = 6, 2, 100
POSITIONS = SEQUENCES * CONTEXT

# Weights of the geometries tiny-dense and tiny-moe, worked out by hand from the description of the models: hidden 256,
# 3 GDN layers of 2 key and 4 value heads of 64, an attention layer of 4 query and 2 key heads of 64, vocabulary 512.
GDN = (2 * 128 + 256) * 256 + 256 * 256 + 2 * 4 * 256 + 256 * 256  # qkv, z, alpha and beta, output
ATTENTION = 2 * 256 * 256 + 2 * 128 * 256 + 256 * 256  # queries and gates, keys and values, output
DENSE = 3 * 512 * 256
SHARED = 8 * 256 + 256 + 3 * 256 * 256  # router, gate of the shared expert, shared expert
EXPERT = 3 * 256 * 256
OUTPUT = 512 * 256
GDN_STATE = 4 * 64 * 64
KEYS_AND_VALUES = 2 * 2 * 64  # of a position
EMBEDDING = 256 * 4  # bytes of a token's row


STATE_BYTES = SEQUENCES * 2 * 4 * 3 * GDN_STATE  # read and written
CACHE_BYTES = 2 * KEYS_AND_VALUES * (POSITIONS + TOKENS)  # float16: all positions are read, those of the tokens written


# What each token of a prefill meets: all layers, and what the MTP head makes its keys and values of.
EACH = 3 * GDN + ATTENTION + 4 * DENSE + 2 * 256 * 256 + 2 * 128 * 256
HEAD_BYTES = 2 * KEYS_AND_VALUES * TOKENS


def work(experts: dict[str, float] | None = None) -> Workload:
    return Workload(TOKENS, SEQUENCES, CONTEXT, experts or {})


def test_bytes_and_products_of_a_dense_verify(packages: Packages) -> None:
    weights = 3 * GDN + ATTENTION + 4 * DENSE + OUTPUT
    state = 3 * GDN_STATE
    cost = GraphCost(packages("tiny-dense", "F32") / "verify.onnx").of(work())
    assert cost.bytes == 4 * weights + TOKENS * EMBEDDING + STATE_BYTES + CACHE_BYTES
    # Each query head multiplies with a key and a value of 64 at each position; a state is decayed, read and updated.
    assert cost.float32_products == TOKENS * (weights + 3 * state + 2 * 256 * CONTEXT)
    assert cost.int8_products == 0


def test_bytes_and_products_of_a_verify_with_experts(packages: Packages) -> None:
    graph = GraphCost(packages("tiny-moe", "F32") / "verify.onnx")
    assert len(graph.expert_nodes()) == 4
    distinct = dict(zip(graph.expert_nodes(), (2.0, 3.0, 5.5, 8.0), strict=True))
    weights = 3 * GDN + ATTENTION + 4 * SHARED + OUTPUT
    state = 3 * GDN_STATE
    cost = graph.of(work(distinct))
    assert cost.bytes == pytest.approx(
        4 * (weights + sum(distinct.values()) * EXPERT) + TOKENS * EMBEDDING + STATE_BYTES + CACHE_BYTES
    )
    chosen = 4 * 2 * EXPERT  # 4 layers, 2 experts a token
    assert cost.float32_products == pytest.approx(TOKENS * (weights + chosen + 3 * state + 2 * 256 * CONTEXT))


def test_bytes_and_products_of_a_prefill(packages: Packages) -> None:
    cost = GraphCost(packages("tiny-dense", "F32") / "prefill.onnx").of(work())
    state = 3 * GDN_STATE
    assert cost.bytes == 4 * (EACH + OUTPUT) + TOKENS * EMBEDDING + STATE_BYTES + CACHE_BYTES + HEAD_BYTES
    assert cost.float32_products == TOKENS * (EACH + 3 * state + 2 * 256 * CONTEXT) + SEQUENCES * OUTPUT


def test_bytes_and_products_of_a_draft(packages: Packages) -> None:
    cost = GraphCost(packages("tiny-dense", "F32") / "draft.onnx").of(work())
    combined, queries, keys_and_values = 2 * 256 * 256, 2 * 256 * 256, 2 * 128 * 256
    each, last = combined + queries + keys_and_values, 256 * 256 + DENSE + OUTPUT
    assert cost.bytes == 4 * (each + last) + TOKENS * EMBEDDING + CACHE_BYTES
    # Tokens before the last one of a sequence end at the projections, of which the cache keeps keys and values.
    assert cost.float32_products == TOKENS * each + SEQUENCES * (last + 2 * 256 * CONTEXT)


@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_blocks_count_as_they_are_stored(packages: Packages, activations: str) -> None:
    weights = 3 * GDN + ATTENTION + 4 * DENSE + OUTPUT
    state = 3 * GDN_STATE
    cost = GraphCost(packages("tiny-dense", "Q8_0", activations=activations) / "verify.onnx").of(work())
    stored = (weights + TOKENS * 256) * 34 / 32
    assert cost.bytes == stored + STATE_BYTES + CACHE_BYTES
    others = TOKENS * (3 * state + 2 * 256 * CONTEXT)
    in_float32, in_int8 = (TOKENS * weights, 0) if activations == "float32" else (0, TOKENS * weights)
    assert (cost.float32_products, cost.int8_products) == (others + in_float32, in_int8)


def test_scores_of_blocks_are_int8(packages: Packages) -> None:
    scores = TOKENS * 256 * CONTEXT
    floats, blocks = (
        GraphCost(packages("tiny-dense", "F32", kv_type=kv_type) / "verify.onnx").of(work())
        for kv_type in ("f32", "q8_0")
    )
    assert (blocks.float32_products, blocks.int8_products) == (floats.float32_products - scores, scores)
    assert blocks.bytes < floats.bytes


def test_an_unknown_operator_is_an_error(packages: Packages, tmp_path: Path) -> None:
    model = onnx.load(packages("tiny-dense", "F32") / "verify.onnx", load_external_data=False)
    (writing,) = (node for node in model.graph.node if node.op_type == "PagedKVWrite")
    writing.op_type = "PagedKVErase"
    onnx.save(model, tmp_path / "verify.onnx")
    with pytest.raises(TrigraphError, match="unknown operator PagedKVErase"):
        GraphCost(tmp_path / "verify.onnx")


def test_every_family_of_operators_is_known() -> None:
    families = {path.parent.name for path in (ROOT / "custom_ops").glob("*/cpu.cc")}
    assert families == {path.parent.name for path in (ROOT / "custom_ops").glob("*/operators.py")}


def test_operators_one_at_a_time() -> None:
    """Counted by hand: 6 tokens of 2 sequences at a context of 100."""

    def cost(op_type: str, inputs: list[Tensor | None], output: Tensor, **attributes: object) -> Cost:
        return operators()[op_type].cost(Node("n", inputs, [output], attributes), work({"n": 3.0}))

    rows = Tensor("x", ("T", 64), 4)
    q8 = Tensor("w", (10, 68), 1)  # two blocks of 32 weights in 34 bytes
    assert cost("BlockMatMul", [rows, q8], rows, types="Q8_0", activations="int8") == Cost(680, 0, 6 * 10 * 64)
    assert cost("BlockMatMul", [rows, q8], rows, types="Q8_0", activations="float32") == Cost(680, 6 * 10 * 64, 0)
    last = Tensor("y", ("S", 10), 4)  # only the last token of each sequence
    assert cost("BlockMatMul", [last, q8], last, types="Q8_0", activations="int8") == Cost(680, 0, 2 * 10 * 64)
    both = cost("BlockMatMul", [rows, q8, q8], rows, types="Q8_0,Q8_0", activations="int8")
    assert both == Cost(2 * 680, 0, 2 * 6 * 10 * 64)
    gated = cost("GatedBlockMatMul", [rows, rows, q8], rows, type="Q8_0", activations="int8")
    assert gated == Cost(680, 0, 6 * 10 * 64)
    assert cost("BlockGather", [None, q8], rows, type="Q8_0") == Cost(6 * 68)
    cache = Tensor("c", ("pages", 16, 2, 8), 2)  # 2 heads of 8, float16
    assert cost("PagedKVWrite", [rows, rows, None, cache, cache], rows) == Cost(6 * 2 * 32)
    mix = Tensor("y", ("T", 32), 4)  # 4 query heads of 8
    assert cost("PagedAttention", [rows, None, cache, cache], mix) == Cost(2 * 100 * 2 * 32, 6 * 100 * 2 * 32)
    state = Tensor("s", ("slots", 4, 8, 8), 4)
    assert cost("GatedDeltaNet", [None] * 8 + [state], rows) == Cost(2 * 2 * 1024, 6 * 3 * 256)
    ids, stack = Tensor("i", ("T", 2), 8), Tensor("e", (8, 10, 34), 1)  # 8 experts of 10 blocks; 3 are chosen
    experts = cost(
        "GroupedExpertFFN",
        [rows, ids, None, stack, stack],
        rows,
        **dict(gate_type="Q8_0", down_type="Q8_0", activations="int8"),
    )
    assert experts == Cost(3 * 2 * 340, 0, 6 * 2 * 2 * 320)


def test_the_floor_is_the_larger_term() -> None:
    assert MACHINE.floor_ms(Cost(20e6, 40e6, 0), 10.0) == pytest.approx(2.0)  # reads 2 ms, multiplies 1 ms
    assert MACHINE.floor_ms(Cost(20e6, 80e6, 160e6), 10.0) == pytest.approx(4.0)  # multiplies 2 + 2 ms
    assert MACHINE.floor_ms(Cost(20e6, 40e6, 0), 5.0) == pytest.approx(4.0)
    assert MACHINE.floor_ms(Cost(), 10.0) == 0


def test_results_are_medians_and_fractions_of_the_roofline(packages: Packages) -> None:
    folder = packages("tiny-dense", "F32")
    roofline = Roofline(folder, read_manifest(folder), MACHINE)
    weights = 4 * (3 * GDN + ATTENTION + 4 * DENSE + OUTPUT)  # bytes; few enough products to be limited by reads
    moved = weights + 4 * EMBEDDING + 2 * 4 * 3 * GDN_STATE + 2 * KEYS_AND_VALUES * (100 + 4)
    samples = [Sample(0.010, 10.0), Sample(0.040, 5.0), Sample(0.020, 20.0)]
    result = roofline.result(Timing(Case("trigraph", "verify", 4, 100), samples))
    assert (result.min_ms, result.median_ms, result.max_ms) == pytest.approx((10, 20, 40))
    assert (result.lower_ms, result.upper_ms) == pytest.approx((15, 30))
    assert result.tokens_per_s == pytest.approx(200)
    assert result.bytes == moved
    # Floors of moved / 10, / 5 and / 20 nanoseconds: the first is the median; over their times, the smallest are equal.
    assert result.floor_ms == pytest.approx(moved / 10e6)
    assert result.roofline == pytest.approx(moved / 5e9 / 0.040)
    whole = roofline.result(Timing(Case("trigraph", "generate", 100, 0), [Sample(0.5)]))
    assert (whole.bytes, whole.floor_ms, whole.roofline, whole.tokens_per_s) == (None, None, None, 200)


def test_a_prefill_is_divided_by_the_multiply_rate(packages: Packages) -> None:
    folder = packages("tiny-dense", "F32")
    timing = Timing(Case("trigraph", "prefill", 100, 0), [Sample(0.5, 10.0)])
    products = 100 * (EACH + 3 * 3 * GDN_STATE + 2 * 256 * 50) + OUTPUT  # a token sees 50 others on average
    result = Roofline(folder, read_manifest(folder), MACHINE).result(timing)
    assert result.floor_ms == pytest.approx(products / 40e6)
    assert result.roofline == pytest.approx(products / 40e6 / 500)
    gpu = replace(MACHINE, float32_gmac_s=0, int8_gmac_s=0)  # whose multiply rate is not measured
    assert Roofline(folder, read_manifest(folder), gpu).result(timing).roofline is None


def test_a_prefill_of_many_tokens_reads_nearly_all_experts(packages: Packages) -> None:
    folder = packages("tiny-moe", "F32")
    roofline = Roofline(folder, read_manifest(folder), MACHINE)
    experts = {  # bytes of a prefill, less what grows with tokens
        tokens: roofline.result(Timing(Case("trigraph", "prefill", tokens, 0), [Sample(0.5, 10.0)])).bytes
        for tokens in (1, 2, 200)
    }
    each_token = EMBEDDING + 4 * KEYS_AND_VALUES  # written for the trunk and the head
    read = {n: (moved or 0) - n * each_token - 2 * KEYS_AND_VALUES * ((n + 1) // 2) for n, moved in experts.items()}
    assert read[2] - read[1] == pytest.approx(4 * 4 * EXPERT * 2 * (1 - 2 / 8))  # 2 of 8, of which some are the same
    assert read[200] - read[1] == pytest.approx(4 * 4 * EXPERT * 6)


def test_experts_of_more_tokens_than_a_verify_takes_of_a_sequence(packages: Packages) -> None:
    folder = packages("tiny-moe", "F32")
    manifest = read_manifest(folder)
    counter = ExpertCounter(folder, manifest, 1)
    tokens = [*range(manifest.max_pending)]
    alone, thrice = counter.count([tokens]), counter.count([tokens * 3])  # what one sequence chooses, all three do
    assert thrice == alone and len(alone) == 4
    more = counter.count([[*tokens, 100]])
    assert all(alone[node] <= more[node] <= alone[node] + 2 for node in alone)
    case = Case("trigraph", "verify", 4, 100, 8)
    assert Roofline(folder, manifest, MACHINE).result(Timing(case, [Sample(0.5, 10.0)])).bytes
