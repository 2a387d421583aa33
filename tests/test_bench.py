"""What the benchmark divides by and prints: bytes and products counted by hand, the replay drafter, tables and JSON."""

import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import onnx
import pytest
from rich.console import Console

from support.command import Run, assert_one_line_error
from support.fake_engine import VOCAB, engine_of
from support.fake_model import chaotic
from support.packages import Packages
from trigraph.custom_ops import host_operator
from trigraph.custom_ops.cost import Cost, Node, Tensor, Workload
from trigraph.custom_ops.registry import operators
from trigraph.exporter import read_manifest
from trigraph.models.errors import TrigraphError
from trigraph.models.geometries import GEOMETRIES
from trigraph.runtime.bench import BenchOptions, Report, Result, bench
from trigraph.runtime.bench.bandwidth import Bandwidth, memory_bandwidth
from trigraph.runtime.bench.cost import GraphCost
from trigraph.runtime.bench.experts import ExpertCounter
from trigraph.runtime.bench.machine import Machine, measure_machine
from trigraph.runtime.bench.plot import write_plot
from trigraph.runtime.bench.replay import ReplayDrafter
from trigraph.runtime.bench.roofline import Roofline
from trigraph.runtime.bench.sample import Case, Sample, Timing, seconds
from trigraph.runtime.decoding.draft_length import FixedLength
from trigraph.runtime.decoding.request import Request
from trigraph.runtime.decoding.sampling import Sampler, Sampling
from trigraph.runtime.decoding.speculation import decode

ROOT = Path(__file__).parents[1]
MACHINE = Machine("a processor", 2, 1, "portable", 0.5, float32_gmac_s=40.0, int8_gmac_s=80.0)
RESULT = Result("trigraph", "verify", 4, 1, 512, 2, 9.0, 9.5, 10.0, 11.0, 12.0, 400.0, 2e7, 5.0, 0.5)
TOKENS, SEQUENCES, CONTEXT = 6, 2, 100
POSITIONS = SEQUENCES * CONTEXT


@pytest.fixture(scope="module")
def packages(
    tmp_path_factory: pytest.TempPathFactory, tiny_gguf: Path, synthetic: Callable[[str, str], Path]
) -> Packages:
    return Packages(tmp_path_factory.mktemp("packages"), tiny_gguf, synthetic)


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


def test_an_unknown_operator_is_an_error(packages: Packages, tmp_path: Path) -> None:
    model = onnx.load(packages("tiny-dense", "F32") / "verify.onnx", load_external_data=False)
    (writing,) = (node for node in model.graph.node if node.op_type == "PagedKVWrite")
    writing.op_type = "PagedKVErase"
    onnx.save(model, tmp_path / "verify.onnx")
    with pytest.raises(TrigraphError, match="unknown operator PagedKVErase"):
        GraphCost(tmp_path / "verify.onnx")


def test_every_operator_of_the_library_is_known(operator_library: Path) -> None:
    for name in operators():
        assert host_operator(name), name
    families = {path.parent.name for path in (ROOT / "custom_ops").glob("*/cpu.cc")}
    assert families == {path.parent.name for path in (ROOT / "custom_ops").glob("*/operators.py")}


def test_operators_one_at_a_time() -> None:
    """Counted by hand: 6 tokens of 2 sequences at a context of 100."""

    def cost(op_type: str, inputs: list[Tensor | None], output: Tensor, **attributes: object) -> Cost:
        return operators()[op_type].cost(Node("n", inputs, [output], attributes), work({"n": 3.0}))

    rows = Tensor("x", ("T", 64), 4)
    q8 = Tensor("w", (10, 68), 1)  # two blocks of 32 weights in 34 bytes
    assert cost("BlockMatMul", [rows, q8], rows, type="Q8_0", activations="int8") == Cost(680, 0, 6 * 10 * 64)
    assert cost("BlockMatMul", [rows, q8], rows, type="Q8_0", activations="float32") == Cost(680, 6 * 10 * 64, 0)
    last = Tensor("y", ("S", 10), 4)  # only the last token of each sequence
    assert cost("BlockMatMul", [last, q8], last, type="Q8_0", activations="int8") == Cost(680, 0, 2 * 10 * 64)
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


def test_distinct_experts(packages: Packages, operator_library: Path) -> None:
    folder = packages("tiny-moe", "F32")
    geometry = GEOMETRIES["tiny-moe"]
    counter = ExpertCounter(folder, read_manifest(folder), threads=1)
    one = counter.count([[5], [400]])
    assert list(one.values()) == [geometry.experts_used] * geometry.layers
    many = counter.count([list(range(8)), list(range(100, 108))])
    assert all(geometry.experts_used < mean <= geometry.experts for mean in many.values())
    folder = packages("tiny-dense", "F32")
    assert ExpertCounter(folder, read_manifest(folder), threads=1).count([[5]]) == {}


@pytest.mark.parametrize("accept", [0.0, 0.6, 1.0])
def test_replayed_drafts_are_right_as_often_as_asked(accept: float) -> None:
    length, drafts = 240, 3
    logits = chaotic(VOCAB)
    engine, model = engine_of(logits, context=length + 8)
    text = [1, 2]
    while len(text) < length + 8:
        text.append(int(logits(tuple(text)).argmax()))
    steps = engine.steps
    sequence = steps.new_sequence()
    first = steps.prefill([sequence], [text[:2]])
    drafter = ReplayDrafter(steps, text, accept)

    class Limit:
        """Ends the completion after `length` tokens."""

        left = length
        finished = False

        def push(self, token: int) -> bool:
            assert token == text[2 + length - self.left + 1]
            self.left -= 1
            self.finished = not self.left
            return self.finished

    sampler = Sampler(Sampling(temperature=0), [])
    request = Request(sequence, int(first.tokens[0]), sampler, Limit(), FixedLength(drafts, "on"))
    for _ in decode(steps, [request], drafter):
        pass
    rounds = request.rounds
    # The first draft of a round is always put to the test.
    tried = [r for r in rounds if r.drafted]
    rate = np.mean([r.accepted > 0 for r in tried])
    assert abs(rate - accept) < 3 * np.sqrt(accept * (1 - accept) / len(tried)) + 1e-9
    expected = sum(accept**i for i in range(drafts + 1))
    assert np.mean([len(r.tokens) for r in tried]) == pytest.approx(expected, rel=0.15)
    heads = sum(graph == "draft" for graph, _ in model.runs)
    assert heads == sum(r.drafted for r in rounds), "the head did not run as in earnest"


def test_the_floor_is_the_larger_term() -> None:
    assert MACHINE.floor_ms(Cost(20e6, 40e6, 0), 10.0) == pytest.approx(2.0)  # reads 2 ms, multiplies 1 ms
    assert MACHINE.floor_ms(Cost(20e6, 80e6, 160e6), 10.0) == pytest.approx(4.0)  # multiplies 2 + 2 ms
    assert MACHINE.floor_ms(Cost(20e6, 40e6, 0), 5.0) == pytest.approx(4.0)
    assert MACHINE.floor_ms(Cost(), 10.0) == 0


def test_multiply_rates_are_of_the_size_that_a_matrix_product_reaches(operator_library: Path) -> None:
    threads, n = os.cpu_count() or 1, 1024
    a = np.ones((n, n), np.float32)
    blas, machine = 0.0, measure_machine(threads, repetitions=2)
    for _ in range(3):
        blas = max(blas, n**3 / seconds(lambda: a @ a) / 1e9)
    assert machine.threads == threads
    assert 0.2 < machine.float32_gmac_s / blas < 10
    assert 0.2 < machine.int8_gmac_s / blas < 80


@pytest.mark.parametrize("threads", [1, 3])
def test_bandwidth_is_measured_pass_by_pass(operator_library: Path, threads: int) -> None:
    bandwidth = memory_bandwidth(threads)
    assert [bandwidth.measure(), bandwidth.measure()] == bandwidth.passes
    assert all(0.01 < rate < 1e5 for rate in bandwidth.passes)


def test_a_machine_tells_how_far_its_bandwidth_moved() -> None:
    machine = MACHINE.with_passes([40.0, 30.0, 60.0])
    assert (machine.min_read_gb_s, machine.read_gb_s, machine.max_read_gb_s) == (30.0, 40.0, 60.0)


RESULTS = [
    replace(RESULT, name="decode", k=1, median_ms=5.0, note=""),
    RESULT,
    replace(RESULT, engine="llama.cpp", median_ms=20.0, roofline=0.25),
    Result("trigraph", "generate", 64, 1, 16, 2, 99.0, 99.0, 100.0, 101.0, 101.0, 640.0, note="accepted 3/4"),
]


def report(machine: Machine = MACHINE) -> Report:
    return Report(machine, "a model", RESULTS, layers=4, started="2026-01-02 03:04 UTC", repetitions=7)


def test_json_has_the_keys_that_scripts_rely_on() -> None:
    content = json.loads(json.dumps(report(MACHINE.with_passes([10.0])).as_json()))
    assert {"machine", "model", "results", "layers", "started", "repetitions"} == set(content)
    assert {"read_gb_s", "min_read_gb_s", "max_read_gb_s", "load"} <= set(content["machine"])
    keys = {"engine", "name", "k", "threads", "median_ms", "min_ms", "tokens_per_s", "bytes", "roofline"}
    assert all(keys <= set(result) for result in content["results"])
    assert content["results"][1]["roofline"] == 0.5
    assert content["results"][3]["bytes"] is None


def test_a_table_shows_each_step_and_the_machine() -> None:
    console = Console(width=120, record=True, file=StringIO())
    console.print(report(MACHINE.with_passes([8.0, 10.0, 12.5])).table())
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert "trigraph verify 4 1 512 10.00 9.00 12.00 400.0 20.0 0.50" in lines
    assert "llama.cpp verify 4 1 512 20.00 9.00 12.00 400.0 20.0 0.25" in lines
    assert "trigraph generate 64 1 16 100.00 99.00 101.00 640.0" in lines
    text = " ".join(lines)
    assert "generate 64: accepted 3/4" in text
    assert "a model, 4 layers, 2026-01-02 03:04 UTC, 7 repetitions" in text
    assert "a processor, portable, 1 thread on 2 cores, load 0.50 reads 10.0 (8.0 to 12.5) GB/s" in text


def _points(path: str) -> np.ndarray:
    """Corners of an SVG path of straight lines, [n, 2]."""
    return np.array(re.findall(r"[ML] (\S+) (\S+)", path), float)


def _ticks(drawing: str) -> list[str]:
    return re.findall(r'<g id="xtick_\d+">.*?<!-- (.*?) -->', drawing, re.DOTALL)


def test_a_plot_shows_medians_spread_and_where_it_comes_from(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no plots")
    write_plot(report(), tmp_path / "plot.svg")
    drawing = (tmp_path / "plot.svg").read_text()
    texts = re.findall(r"<!-- (.*?) -->", drawing, re.DOTALL)  # that matplotlib draws as outlines
    assert {"1", "4", "tokens in a step", "milliseconds", "trigraph", "llama.cpp", "roofline"} <= set(texts)
    assert _ticks(drawing) == ["1", "4"]
    assert {"a model, 4 layers, 2026-01-02 03:04 UTC, 7 repetitions", "lines: medians, bands: quartiles"} <= set(texts)
    assert "a processor, portable, 1 thread on 2 cores, load 0.50" in texts
    assert "context length in tokens" not in texts  # nothing was swept
    frame = _points(re.findall(r'<g id="patch_2">\s*<path d="(.*?)"', drawing, re.DOTALL)[0])
    zero = frame[:, 1].max()
    found = re.findall(r'PolyCollection_1">.*?<path .*? d="(.*?)".*?<use [^>]*y="(.*?)"', drawing, re.DOTALL)
    band = _points(found[0][0]) + np.array([0, float(found[0][1])])
    (line,) = map(_points, re.findall(r'<path d="([^"]*)" clip-path[^>]*stroke: #1f77b4', drawing))
    one, four = zero - line[:, 1]
    assert four / one == pytest.approx(10.0 / 5.0, rel=1e-3)
    at_four = (zero - band[np.isclose(band[:, 0], line[1, 0]), 1]) / four
    assert (at_four.min(), at_four.max()) == pytest.approx((9.5 / 10.0, 11.0 / 10.0), rel=1e-3)


def test_sweeps_have_panels_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no plots")
    swept = [replace(RESULT, name="decode", k=1, context=n) for n in (1, 1024, 16384)]
    batches = [replace(RESULT, name="decode", k=1, sequences=n) for n in (1, 3)]
    write_plot(replace(report(), results=[*RESULTS, *swept, *batches]), tmp_path / "plot.svg")
    drawing = (tmp_path / "plot.svg").read_text()
    assert {"context length in tokens", "sequences in a step"} <= set(re.findall(r"<!-- (.*?) -->", drawing))
    ticks = _ticks(drawing)
    assert (ticks[:2], ticks[-2:]) == (["1", "4"], ["1", "3"])
    assert all(tick.isdecimal() for tick in ticks[2:-2])
    write_plot(replace(report(), results=[]), tmp_path / "empty.png")
    assert (tmp_path / "empty.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "missing", "text"),
    [
        (["--plot", "{tmp}/plot.pdf"], None, "a plot is a .png or .svg file"),
        (["--plot", "{tmp}/none/plot.png"], None, "there is no folder"),
        (["--plot", "{tmp}/folder.svg"], None, "cannot be written"),
        (["--plot", "{tmp}/plot.png", "--json"], "matplotlib", "pip install 'trigraph[plot]'"),
        (["--versus", "llama.cpp"], "llama_cpp", "pip install 'trigraph[llama]'"),
        (["--versus", "vllm"], None, "only llama.cpp"),
        (["-k", "1,x"], None, "give comma-separated numbers"),
        (["-t", "0"], None, "threads is 0"),
    ],
)
def test_what_is_missing_is_found_before_the_work(
    trigraph: Run,
    tiny_gguf: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    missing: str | None,
    text: str,
) -> None:
    (tmp_path / "folder.svg").mkdir()
    if missing is not None:
        monkeypatch.setitem(sys.modules, missing, None)
    elif "--plot" in arguments:
        pytest.importorskip("matplotlib", reason="matplotlib is not installed: no plots")
    monkeypatch.setattr("trigraph.runtime.cli.measure.cached_package", lambda *_: pytest.fail("the work began"))
    assert_one_line_error(trigraph("bench", tiny_gguf, *(a.format(tmp=tmp_path) for a in arguments)), text)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"prompt": 0}, "prompt is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"repetitions": 0}, "repetitions is 0"),
        ({"accept": 1.5}, "accept is 1.5"),
        ({"tokens": -1}, "tokens is -1"),
        ({"contexts": (4, 0)}, "contexts is 0"),
        ({"sequences": (0,)}, "sequences is 0"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], text: str) -> None:
    with pytest.raises(TrigraphError, match=text):
        BenchOptions(**options)  # type: ignore[arg-type]


def test_runs_that_a_package_cannot_do_are_refused(packages: Packages, operator_library: Path) -> None:
    folder = packages("tiny-moe", "F32")
    with pytest.raises(TrigraphError, match="a verify takes 1 to 8 tokens"):
        bench(folder, BenchOptions(verify_tokens=(1, 9)))
    with pytest.raises(TrigraphError, match="the package holds 4096"):
        bench(folder, BenchOptions(prompt=5000, repetitions=1))


def test_a_run(trigraph: Run, packages: Packages, operator_library: Path) -> None:
    folder = packages("tiny-moe", "F32")
    command = ["bench", folder, "-p", 12, "-n", 10, "-k", "1,4", "-r", 1, "-t", 1]
    result = trigraph(*command, "--json", "--accept", 0.8, "--contexts", "1,20", "--sequences", 2)
    assert result.status == 0, result
    content = json.loads(result.out)
    kinds = [(r["name"], r["k"], r["sequences"], r["context"]) for r in content["results"]]
    assert kinds == [
        ("prefill", 12, 1, 0),
        ("decode", 1, 1, 12),
        ("verify", 4, 1, 12),
        ("draft", 1, 1, 12),
        ("decode", 1, 1, 1),
        ("decode", 1, 1, 20),
        ("decode", 1, 2, 12),
        ("generate", 10, 1, 12),
        ("generate", 10, 1, 12),
    ]
    for entry in content["results"]:
        assert 0 < entry["min_ms"] <= entry["median_ms"] <= entry["max_ms"]
    assert content["layers"] == GEOMETRIES["tiny-moe"].layers
    table = trigraph(*command)
    assert table.status == 0
    assert "roofline" in table.out


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
    prefill = roofline.result(Timing(Case("trigraph", "prefill", 100, 0), [Sample(0.5)]))
    assert (prefill.bytes, prefill.floor_ms, prefill.roofline, prefill.tokens_per_s) == (None, None, None, 200)


def test_steps_are_divided_by_the_floor_of_their_own_turn(
    packages: Packages, operator_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = [float(n) for n in range(1, 7)]
    ahead = iter(rates)
    monkeypatch.setattr("trigraph.runtime.bench.run.memory_bandwidth", lambda _: Bandwidth(lambda: 1e-6 * next(ahead)))
    options = BenchOptions(prompt=4, tokens=0, verify_tokens=(1,), repetitions=2)
    report = bench(packages("tiny-moe", "F32"), options)
    assert next(ahead, None) is None
    assert report.machine.read_gb_s == pytest.approx(3.5e-6)
    # A decode and a draft in each turn; the first turn does not count.
    for name, (first, second) in (("decode", rates[2::2]), ("draft", rates[3::2])):
        (result,) = (r for r in report.results if r.name == name)
        assert result.bytes and result.floor_ms and result.roofline
        floors = [result.bytes / rate for rate in (first, second)]
        assert result.floor_ms == pytest.approx(sum(floors) / 2)
        fractions = [
            (floors[0] / one + floors[1] / other) / 2
            for one, other in ((result.min_ms, result.max_ms), (result.max_ms, result.min_ms))
        ]
        assert any(result.roofline == pytest.approx(fraction) for fraction in fractions)


def test_against_llama_cpp(tiny_gguf: Path, packages: Packages, operator_library: Path) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: nothing to compare with")
    folder = packages("trained", "Q8_0")
    options = BenchOptions(prompt=8, tokens=0, verify_tokens=(1, 2), repetitions=1, versus_llama_cpp=True)
    results = bench(folder, options).results
    kinds = {(r.engine, r.name) for r in results}
    assert kinds == {(e, n) for e in ("trigraph", "llama.cpp") for n in ("prefill", "decode", "verify", "draft")}
