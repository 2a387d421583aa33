"""Loads of requests: their arithmetic by hand, turns of fake engines, and our own engine."""

import json
import threading
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from support.command import Run, assert_one_line_error
from support.fakes.engine import VOCAB, engine_of
from support.fakes.model import chaotic
from support.machine import MACHINE
from support.models.packages import Packages
from trigraph.models.errors import TrigraphError
from trigraph.runtime.bench import BenchOptions, RequestOptions, RequestReport, bench, bench_requests
from trigraph.runtime.bench.load import Load, Served, ServedLoad
from trigraph.runtime.bench.machine import Bandwidth
from trigraph.runtime.bench.own_server import OwnServer
from trigraph.runtime.bench.random_tokens import RandomTokens
from trigraph.runtime.bench.request_result import Ratio, percentile, ratio, summary
from trigraph.runtime.bench.request_run import serve_loads, summaries


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([7.0], 95, 7.0), ([3.0, 1.0, 2.0], 50, 2.0), ([*range(1, 21)], 95, 19), ([*range(1, 22)], 95, 20)],
)
def test_percentiles_are_values_that_were_measured(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == expected


def test_a_ratio_is_that_of_the_medians_and_its_range_that_of_the_loads() -> None:
    assert ratio([10.0, 30.0, 20.0], [5.0, 10.0, 20.0]) == Ratio(2.0, 1.0, 3.0)


# Two requests at once, with a third after the first. The first one's second round brings two tokens.
LOAD = ServedLoad(
    [
        Served(10.0, [10.5, 10.7, 11.0], 4, reused=2, drafted=3, accepted=1, rounds=1.0),
        Served(10.0, [10.6, 11.0], 2, rounds=0.5),
        Served(11.0, [11.3, 11.5], 2, rounds=0.5),
    ],
    peak_memory=5_000_000,
)


def test_figures_of_a_load() -> None:
    assert LOAD.tokens_per_s == pytest.approx(8 / 1.5)
    slower = ServedLoad([Served(0.0, [1.0, 3.0], 4)], peak_memory=7_000_000)
    result = summary("trigraph", 2, [LOAD, slower], ours=[LOAD, slower])
    assert (result.engine, result.concurrency, result.requests) == ("trigraph", 2, 3)
    assert result.tokens_per_s == pytest.approx((8 / 1.5 + 4 / 3) / 2)
    assert (result.min_tokens_per_s, result.max_tokens_per_s) == pytest.approx((4 / 3, 8 / 1.5))
    # First tokens after 300, 500, 600 and 1000 ms; gaps of 200, 200, 300, 400 and 2000.
    assert (result.first_token_ms, result.first_token_p95_ms) == pytest.approx((550, 1000))
    assert (result.between_ms, result.between_p95_ms) == pytest.approx((300, 2000))
    assert (result.reused, result.drafted, result.accepted) == (2, 3, 1)
    # Five times a request took part in one of two rounds, which verified those five tokens and three drafts.
    assert (result.sequences_per_round, result.rows_per_round) == pytest.approx((2.5, 4.0))
    assert result.peak_memory == 7_000_000
    assert result.faster == Ratio(1.0, 1.0, 1.0)


def test_an_engine_that_does_not_tell_its_rounds_has_none() -> None:
    result = summary("llama.cpp", 1, [ServedLoad([Served(0.0, [1.0, 2.0], 2)], None)])
    assert (result.rows_per_round, result.sequences_per_round, result.peak_memory) == (None, None, None)


class FakeServer:
    """Writes down what it served, and takes `seconds` for it by its own clock."""

    settings = "a fake"

    def __init__(self, name: str, log: list[tuple[str, Load]], seconds: float) -> None:
        self.name, self._log, self._seconds = name, log, seconds

    def serve(self, load: Load) -> ServedLoad:
        self._log.append((self.name, load))
        return ServedLoad([Served(0.0, [self._seconds], load.tokens) for _ in load.prompts], None)

    def close(self) -> None:
        pass


def test_engines_serve_the_same_loads_in_rotating_order() -> None:
    log: list[tuple[str, Load]] = []
    servers = [FakeServer("trigraph", log, 1.0), FakeServer("peer", log, 4.0)]
    options = RequestOptions(3, prompt=12, tokens=5, shared_prefix=4, repetitions=2)
    taken = serve_loads(servers, options, 2, RandomTokens(1000), Bandwidth(lambda: 7e9))
    loads = [(name, load) for name, load in log if len(load.prompts) == 3]
    assert [name for name, _ in loads] == ["trigraph", "peer", "peer", "trigraph"]
    assert loads[0][1] == loads[1][1] and loads[2][1] == loads[3][1]
    prompts = [prompt for _, load in loads[1:3] for prompt in load.prompts]
    assert {len(prompt) for prompt in prompts} == {12}
    assert len({tuple(prompt[:4]) for prompt in prompts}) == 2  # one shared beginning for each load
    assert len({tuple(prompt[4:]) for prompt in prompts}) == 6
    assert all((load.tokens, load.concurrency) == (5, 2) for _, load in loads)
    assert [load.read_gb_s for load in taken["peer"]] == [7.0, 7.0]
    ours, theirs = summaries(2, taken)
    assert (ours.engine, ours.faster) == ("trigraph", None)
    assert theirs.faster == Ratio(4.0, 4.0, 4.0)


def test_our_engine_keeps_as_many_requests_in_flight_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = engine_of(chaotic(VOCAB), context=64, sequences=3)
    submit, lock, full, in_flight, most = type(engine).submit, threading.Lock(), threading.Event(), 0, 0

    def counted(*arguments: object) -> object:
        nonlocal in_flight, most
        request = submit(*arguments)  # type: ignore[arg-type]
        result = request.result

        def finished() -> str:
            nonlocal in_flight
            text = result()
            full.wait(60)
            with lock:
                in_flight -= 1
            return text

        with lock:
            in_flight += 1
            most = max(most, in_flight)
            if most == 3:
                full.set()
        monkeypatch.setattr(request, "result", finished)
        return request

    monkeypatch.setattr(type(engine), "submit", counted)
    load = Load.draw(RandomTokens(VOCAB - 2), requests=7, prompt=10, tokens=6, concurrency=3)
    done = OwnServer(engine).serve(load)
    assert most == 3
    assert [served.tokens for served in done.served] == [6] * 7
    for served in done.served:
        assert served.submitted < served.arrivals[0]
        assert served.arrivals == sorted(served.arrivals)
        assert served.rounds > 0


def test_fixed_drafts_are_drafted() -> None:
    engine, _ = engine_of(chaotic(VOCAB), context=64)
    load = Load.draw(RandomTokens(VOCAB - 2), requests=1, prompt=10, tokens=9, concurrency=1)
    (served,) = OwnServer(engine, 3).serve(load).served
    assert (served.drafted, served.accepted, len(served.arrivals)) == (6, 6, 3)  # 1, 4 and 4 tokens


def test_a_table_and_json() -> None:
    ours = replace(summary("trigraph", 2, [LOAD]), floor_ms=150.0, roofline=0.5)
    report = RequestReport(
        machine=MACHINE.with_passes([8.0]),
        model="a model",
        layers=4,
        started="2026-01-02 03:04 UTC",
        repetitions=1,
        weights="plain",
        prompt=128,
        tokens=64,
        shared_prefix=32,
        settings={"trigraph": "so and so"},
        results=[ours, summary("llama.cpp", 2, [LOAD], [LOAD])],
    )
    content = json.loads(json.dumps(report.as_json()))
    assert content["results"][0]["roofline"] == 0.5
    assert content["results"][1]["faster"] == [1.0, 1.0, 1.0]
    console = Console(width=126, record=True, file=StringIO())
    console.print(report.table())
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert "trigraph 2 5.3 500 600 250.0 400.0 33% 3.5 5 0.50" in lines
    assert "llama.cpp 2 5.3 1.00 (1.00-1.00) 500 600 250.0 400.0 33% 3.5 5" in lines
    assert "a model: prompts of 128 tokens, 32 of them shared, completions of 64" in lines
    assert "trigraph: so and so" in lines


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"requests": 0}, "requests is 0"),
        ({"concurrency": (2, 0)}, "concurrency is 0"),
        ({"concurrency": ()}, "concurrency is empty"),
        ({"tokens": 1}, "tokens is 1"),
        ({"prompt": 8, "shared_prefix": 8}, "shared-prefix is 8"),
        ({"draft_tokens": (1, 2)}, "give one number"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(TrigraphError, match=text):
        RequestOptions(**{"requests": 4, **options})  # type: ignore[arg-type]


def test_runs_that_a_package_cannot_do_are_refused(packages: Packages, operator_library: Path) -> None:
    folder = packages("tiny-moe", "F32")
    with pytest.raises(TrigraphError, match="the package holds 4096"):
        bench_requests(folder, RequestOptions(1, prompt=5000))
    with pytest.raises(TrigraphError, match="a round drafts at most 7"):
        bench_requests(folder, RequestOptions(1, draft_tokens=(8,)))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--requests", 4, "--concurrency", "1,x"], "give comma-separated numbers"),
        (["--requests", 4, "--plot", "plot.png"], "cannot be combined with --requests"),
        (["--requests", 4, "--accept", 0.5], "leave it out with --requests"),
        (["--shared-prefix", 4], "need --requests"),
    ],
)
def test_mistakes_are_found_before_the_work(
    trigraph: Run, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[object], text: str
) -> None:
    monkeypatch.setattr("trigraph.runtime.cli.measure.cached_package", lambda *_: pytest.fail("the work began"))
    assert_one_line_error(trigraph("bench", tiny_gguf, *arguments), text)


@pytest.mark.slow
def test_a_run(trigraph: Run, packages: Packages, operator_library: Path) -> None:
    folder = packages("tiny-moe", "F32")
    command = ["bench", folder, "--requests", 5, "--concurrency", "1,3", "-p", 12, "-n", 6, "-r", 2, "-t", 1]
    result = trigraph(*command, "--json")
    assert result.status == 0, result
    content = json.loads(result.out)
    assert [(r["engine"], r["concurrency"], r["requests"]) for r in content["results"]] == [
        ("trigraph", 1, 5),
        ("trigraph", 3, 5),
    ]
    for r in content["results"]:
        assert 0 < r["min_tokens_per_s"] <= r["tokens_per_s"] <= r["max_tokens_per_s"]
        assert 0 < r["between_ms"] <= r["between_p95_ms"]
        assert r["sequences_per_round"] <= r["concurrency"] and r["sequences_per_round"] <= r["rows_per_round"]
        assert r["floor_ms"] > 0 and r["roofline"] > 0
    table = trigraph(*command)
    assert table.status == 0
    assert "in flight" in table.out


@pytest.mark.slow
def test_the_floor_is_that_of_a_decode_of_as_many_sequences(
    packages: Packages, operator_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = packages("tiny-moe", "F32")
    monkeypatch.setattr("trigraph.runtime.bench.run.memory_reader", lambda _: lambda: 1e3)
    options = RequestOptions(2, concurrency=(2,), prompt=12, tokens=8, repetitions=1, draft_tokens=(0,))
    (result,) = bench_requests(folder, options).results
    steps = bench(
        folder, BenchOptions(prompt=16, tokens=0, repetitions=1, sequences=(round(result.sequences_per_round or 0),))
    )
    decode = steps.results[-1]
    assert result.floor_ms == pytest.approx(decode.floor_ms)
    assert result.floor_ms and result.roofline == pytest.approx(result.floor_ms / result.between_ms)
