"""What the benchmark prints and draws."""

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from support.machine import MACHINE
from trigraph.runtime.bench import Report, Result
from trigraph.runtime.bench.machine import Machine
from trigraph.runtime.bench.plot import write_plot

RESULT = Result("trigraph", "verify", 4, 1, 512, 2, 9.0, 9.5, 10.0, 11.0, 12.0, 400.0, 2e7, 5.0, 0.5)
RESULTS = [
    replace(RESULT, name="decode", k=1, median_ms=5.0, note=""),
    RESULT,
    replace(RESULT, engine="llama.cpp", median_ms=20.0, roofline=0.25),
    Result("trigraph", "generate", 64, 1, 16, 2, 99.0, 99.0, 100.0, 101.0, 101.0, 640.0, note="accepted 3/4"),
]


def report(machine: Machine = MACHINE) -> Report:
    return Report(
        machine=machine,
        model="a model",
        results=RESULTS,
        layers=4,
        started="2026-01-02 03:04 UTC",
        repetitions=7,
        weights="plain",
    )


def test_json_has_the_keys_that_scripts_rely_on() -> None:
    content = json.loads(json.dumps(report(MACHINE.with_passes([10.0])).as_json()))
    assert {"machine", "model", "results", "layers", "started", "repetitions", "weights"} == set(content)
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
    assert "a processor, portable, 1 thread on 2 cores, load 0.50, weights plain reads 10.0 (8.0 to 12.5) GB/s" in text


def _points(path: str) -> np.ndarray:
    """Corners of an SVG path of straight lines, [n, 2]."""
    return np.array(re.findall(r"[ML] (\S+) (\S+)", path), float)


def _ticks(drawing: str) -> list[str]:
    return re.findall(r'<g id="xtick_\d+">.*?<!-- (.*?) -->', drawing, re.DOTALL)


def test_a_plot_shows_medians_spread_and_where_it_comes_from(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no plots")
    write_plot(report(), tmp_path / "plot.svg")
    drawing = (tmp_path / "plot.svg").read_text()
    assert "prefers-color-scheme: dark" in drawing
    texts = re.findall(r"<!-- (.*?) -->", drawing, re.DOTALL)  # that matplotlib draws as outlines
    assert {"1", "4", "tokens in a step", "milliseconds", "trigraph", "llama.cpp", "roofline"} <= set(texts)
    assert _ticks(drawing) == ["1", "4"]
    assert {"a model, 4 layers, 2026-01-02 03:04 UTC, 7 repetitions", "lines: medians, bands: quartiles"} <= set(texts)
    assert "a processor, portable, 1 thread on 2 cores, load 0.50, weights plain" in texts
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
