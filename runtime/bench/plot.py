"""Draws a report: the time of a step against its tokens, and against the context and the batch size if swept."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from trigraph.models.errors import TrigraphError, file_errors
from trigraph.runtime.bench.report import Report
from trigraph.runtime.bench.result import Result

_MANY_TICKS = 8
_SIZE = (6.0, 4.6)  # inches of a panel
_DARK = """
@media (prefers-color-scheme: dark) {
  [style*="fill: #ffffff"] { fill: #0d1117 !important }
  [style*="stroke: #000000"] { stroke: #e6edf3 !important }
  [id^="text_"] { fill: #e6edf3 }
  [style*="fill: #595959"] { fill: #9da7b3 !important }
  [style*="stroke: #666666"] { stroke: #9da7b3 !important }
}
"""


class _Panel(NamedTuple):
    label: str
    x: Callable[[Result], int]
    results: list[Result]


def check_plot(path: Path) -> None:
    """Raises TrigraphError when a plot could not be written to `path`: for a check before the work."""
    if path.suffix not in (".png", ".svg"):
        raise TrigraphError(f"{path}: a plot is a .png or .svg file")
    if find_spec("matplotlib") is None:
        raise TrigraphError("--plot needs matplotlib: pip install matplotlib")
    if not path.absolute().parent.is_dir():
        raise TrigraphError(f"{path}: the folder {path.parent} does not exist; create it first")
    target = path if path.exists() else path.absolute().parent
    if path.is_dir() or not os.access(target, os.W_OK):
        raise TrigraphError(f"{path}: cannot be written; choose another file")


def write_plot(report: Report, path: Path) -> None:
    """Medians as lines, quartiles as bands, and the roofline.

    Raises TrigraphError without matplotlib, or when the file cannot be written.
    """
    check_plot(path)
    from matplotlib.figure import Figure

    panels = _panels(report)
    width, height = _SIZE
    figure = Figure(figsize=(width * len(panels), height), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw(axes, panel)
    title, *others = report.provenance()
    figure.suptitle(title)
    figure.supxlabel("\n".join([*others, "lines: medians, bands: quartiles"]), fontsize="medium", color="0.35")
    with file_errors(path, "written"):
        figure.savefig(path)
        if path.suffix == ".svg":
            path.write_text(
                path.read_text(encoding="utf-8").replace("</style>", f"{_DARK}</style>", 1), encoding="utf-8"
            )


def _panels(report: Report) -> list[_Panel]:
    """What varies in the report; the tokens of a verify in any case."""
    steps = [r for r in report.results if r.name in ("decode", "verify")]
    start = steps[0].context if steps else 0
    ours = [r for r in steps if r.name == "decode" and r.engine == "trigraph"]
    # Backwards: of two decodes with the same number, the one counts that took turns with the verifies.
    verified = [r for r in steps[::-1] if r.context == start and r.sequences == 1]
    panels = [
        _Panel("tokens in a step", lambda r: r.k, verified),
        _Panel("context length in tokens", lambda r: r.context, [r for r in ours if r.sequences == 1]),
        _Panel("sequences in a step", lambda r: r.sequences, [r for r in ours if r.context == start]),
    ]
    return [panel for i, panel in enumerate(panels) if i == 0 or len({panel.x(r) for r in panel.results}) > 1]


def _draw(axes: Any, panel: _Panel) -> None:
    for engine in sorted({r.engine for r in panel.results}, key=lambda name: (name != "trigraph", name)):
        results = sorted({panel.x(r): r for r in panel.results if r.engine == engine}.values(), key=panel.x)
        x = [panel.x(r) for r in results]
        (line,) = axes.plot(x, [r.median_ms for r in results], marker="o", label=engine)
        axes.fill_between(
            x, [r.lower_ms for r in results], [r.upper_ms for r in results], color=line.get_color(), alpha=0.2
        )
        if engine == "trigraph":
            floors = [(panel.x(r), r.floor_ms) for r in results if r.floor_ms is not None]
            axes.plot(*zip(*floors, strict=True), linestyle="--", color="0.4", label="roofline")
    axes.set(xlabel=panel.label, ylabel="milliseconds")
    axes.set_ylim(bottom=0)
    _set_ticks(axes, sorted({panel.x(r) for r in panel.results}))
    if panel.results:
        axes.legend()


def _set_ticks(axes: Any, values: list[int]) -> None:
    """Whole numbers: those that were measured, if they are not too many or too near to each other."""
    from matplotlib.ticker import MaxNLocator

    gaps = [b - a for a, b in pairwise(values)]
    if values and len(values) <= _MANY_TICKS and all(gap * 2 * _MANY_TICKS >= values[-1] - values[0] for gap in gaps):
        axes.set_xticks(values)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
