"""What the benchmark measures: experts, replayed drafts, machines, whole runs; and what it refuses."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from support.command import Run, assert_one_line_error
from support.fakes.engine import VOCAB, engine_of
from support.fakes.model import chaotic
from support.machine import MACHINE
from support.models.packages import Packages
from trigraph.exporter import read_manifest
from trigraph.models.errors import TrigraphError
from trigraph.models.geometries import GEOMETRIES
from trigraph.runtime.bench import BenchOptions, bench
from trigraph.runtime.bench.completions import greedy_completion
from trigraph.runtime.bench.experts import ExpertCounter
from trigraph.runtime.bench.machine import Bandwidth, measure_machine
from trigraph.runtime.bench.replay import replaying
from trigraph.runtime.bench.sample import seconds
from trigraph.runtime.device.read_rate import memory_reader
from trigraph.runtime.drafting.acceptance import Acceptance
from trigraph.runtime.drafting.choice import Governor
from trigraph.runtime.requests.draft_length import DraftLength
from trigraph.runtime.requests.request import Request
from trigraph.runtime.sampling.sampling import Sampler, Sampling
from trigraph.runtime.scheduler.speculation import decode


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
    executor = replaying(engine.executor, [text], accept)

    completion = greedy_completion(engine, text[:2], length)
    completion.push(token := int(first.tokens[0]))
    sampler = Sampler(Sampling(temperature=0), [])
    drafting = DraftLength(Acceptance(7), 7, fixed=drafts)
    for _ in decode(executor, [Request(completion, sampler, drafting, sequence, token)], Governor()):
        pass
    assert completion.ids == text[2 : 2 + length]
    rounds = completion.rounds
    # The first draft of a round is always put to the test.
    tried = [r for r in rounds if r.drafted]
    rate = np.mean([r.accepted > 0 for r in tried])
    assert abs(rate - accept) < 3 * np.sqrt(accept * (1 - accept) / len(tried)) + 1e-9
    expected = sum(accept**i for i in range(drafts + 1))
    assert np.mean([len(r.tokens) for r in tried]) == pytest.approx(expected, rel=0.15)
    heads = sum(graph == "draft" for graph, _ in model.runs)
    assert heads == sum(r.drafted for r in rounds), "the head did not run as in earnest"


def test_multiply_rates_are_of_the_size_that_a_matrix_product_reaches(operator_library: Path) -> None:
    threads, n = os.cpu_count() or 1, 1024
    a = np.ones((n, n), np.float32)
    blas, machine = 0.0, measure_machine(threads, repetitions=2)
    for _ in range(3):
        blas = max(blas, n**3 / seconds(lambda: a @ a) / 1e9)
    assert machine.threads == threads
    assert 0.02 < machine.float32_gmac_s / blas < 100  # others may have the processors meanwhile
    assert 0.02 < machine.int8_gmac_s / blas < 800


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
def test_bandwidth_is_measured_pass_by_pass(operator_library: Path, threads: int) -> None:
    bandwidth = Bandwidth(memory_reader(threads))
    assert [bandwidth.measure(), bandwidth.measure()] == bandwidth.passes
    assert all(0.01 < rate < 1e5 for rate in bandwidth.passes)


def test_a_machine_tells_how_far_its_bandwidth_moved() -> None:
    machine = MACHINE.with_passes([40.0, 30.0, 60.0])
    assert (machine.min_read_gb_s, machine.read_gb_s, machine.max_read_gb_s) == (30.0, 40.0, 60.0)


@pytest.mark.parametrize(
    ("arguments", "missing", "text"),
    [
        (["--plot", "{tmp}/plot.pdf"], None, "a plot is a .png or .svg file"),
        (["--plot", "{tmp}/none/plot.png"], None, "does not exist; create it"),
        (["--plot", "{tmp}/folder.svg"], None, "cannot be written"),
        (["--plot", "{tmp}/plot.png", "--json"], "matplotlib", "pip install matplotlib"),
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_head_and_block_drafter_are_both_timed(packages: Packages, operator_library: Path) -> None:
    options = BenchOptions(prompt=4, tokens=0, verify_tokens=(1,), repetitions=1)
    found = bench(packages("tiny-moe", "Q4_K_M", kv_type="f16", drafter="dflash2-sliding"), options).results
    assert [(r.name, r.k) for r in found] == [("prefill", 4), ("decode", 1), ("draft", 1), ("block", 8)]
    assert all(r.bytes for r in found)


@pytest.mark.slow
def test_steps_are_divided_by_the_floor_of_their_own_turn(
    packages: Packages, operator_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = [float(n) for n in range(1, 10)]
    ahead = iter(rates)
    monkeypatch.setattr("trigraph.runtime.bench.run.memory_reader", lambda _: lambda: 1e3 * next(ahead))
    options = BenchOptions(prompt=4, tokens=0, verify_tokens=(1,), repetitions=2)
    report = bench(packages("tiny-moe", "F32"), options)
    assert next(ahead, None) is None
    assert report.machine.read_gb_s == pytest.approx(5e-6)
    # Three turns of prefills, then a decode and a draft in each turn; the first turns do not count.
    for name, (first, second) in (("prefill", rates[1:3]), ("decode", rates[5::2]), ("draft", rates[6::2])):
        (result,) = (r for r in report.results if r.name == name)
        assert result.bytes and result.floor_ms and result.roofline
        floors = [result.bytes / rate for rate in (first, second)]
        assert result.floor_ms == pytest.approx(sum(floors) / 2)
        fractions = [
            (floors[0] / one + floors[1] / other) / 2
            for one, other in ((result.min_ms, result.max_ms), (result.max_ms, result.min_ms))
        ]
        assert any(result.roofline == pytest.approx(fraction) for fraction in fractions)
