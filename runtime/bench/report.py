"""The figures of a run: a table for people, JSON for scripts, a plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from trigraph.models.errors import TrigraphError
from trigraph.runtime.bench.machine import Machine


@dataclass(frozen=True)
class Result:
    """Times of one kind of step in one engine."""

    engine: str
    name: str  # "prefill", "decode", "verify", "draft" or "generate"
    k: int  # tokens of each sequence in the step, of the text for prefill and generate
    sequences: int
    context: int  # positions before the step, of each sequence
    threads: int
    median_ms: float
    min_ms: float
    max_ms: float
    tokens_per_s: float  # of all sequences, at the median
    bytes: float | None = None  # that the step must move
    floor_ms: float | None = None  # the roofline: the larger of bytes over bandwidth and products over multiply rate
    roofline: float | None = None  # fraction of it reached: floor over time. Both are medians over the turns
    note: str = ""


@dataclass(frozen=True)
class Report:
    """A run: the machine and what was measured on it."""

    machine: Machine
    model: str
    results: Sequence[Result]

    def as_json(self) -> dict[str, Any]:
        """The machine, and a list of results."""
        return asdict(self)

    def table(self) -> Table:
        """The figures, one step a line; `roofline` is the fraction of it that was reached."""
        machine = self.machine
        table = Table(title=self.model, box=SIMPLE_HEAD, pad_edge=False)
        for heading in ("engine", "step"):
            table.add_column(heading, no_wrap=True)
        for heading in ("tokens", "texts", "context", "ms", "min", "max", "tokens/s", "MB", "roofline"):
            table.add_column(heading, justify="right", no_wrap=True)
        for r in self.results:
            table.add_row(
                r.engine,
                r.name,
                *(str(count) for count in (r.k, r.sequences, r.context)),
                *(f"{ms:.2f}" for ms in (r.median_ms, r.min_ms, r.max_ms)),
                f"{r.tokens_per_s:.1f}",
                "" if r.bytes is None else f"{r.bytes / 1e6:.1f}",
                "" if r.roofline is None else f"{r.roofline:.2f}",
            )
        lines = [f"{r.name} {r.k}: {r.note}" for r in self.results if r.note]
        lines.append(
            f"{machine.processor}, {machine.instruction_set}, {machine.threads} threads, load {machine.load:.2f}; "
            f"reads {machine.read_gb_s:.1f} ({machine.min_read_gb_s:.1f} to {machine.max_read_gb_s:.1f}) GB/s, "
            f"multiplies {machine.float32_gmac_s:.0f} (float32) and {machine.int8_gmac_s:.0f} (int8) G/s"
        )
        table.caption = "\n".join(lines)
        return table

    def plot(self, path: Path) -> None:
        """Time of a step against its tokens, and against the context and the texts when they were swept.

        Ours, the roofline and the peer. Needs matplotlib; raises TrigraphError without it.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise TrigraphError("--plot needs matplotlib: pip install matplotlib") from None
        if path.suffix not in (".png", ".svg"):
            raise TrigraphError(f"{path}: a plot is a .png or .svg file")
        panels = [(label, key, steps) for label, key, steps in self._panels() if len({key(r) for r in steps}) > 1]
        figure = Figure(figsize=(6 * max(1, len(panels)), 4), layout="constrained")
        for axes, (label, key, steps) in zip(
            figure.subplots(1, max(1, len(panels)), squeeze=False)[0], panels, strict=False
        ):
            for engine in dict.fromkeys(r.engine for r in steps):
                mine = sorted({key(r): r for r in steps if r.engine == engine}.values(), key=key)
                axes.plot([key(r) for r in mine], [r.median_ms for r in mine], marker="o", label=engine)
                if engine == "trigraph":
                    axes.plot(
                        [key(r) for r in mine], [r.floor_ms or 0.0 for r in mine], linestyle="--", label="roofline"
                    )
            axes.set(xlabel=label, ylabel="milliseconds")
            axes.set_ylim(bottom=0)
            axes.legend()
        figure.suptitle(f"{self.model}, {self.machine.threads} threads")
        figure.savefig(path)

    def _panels(self) -> list[tuple[str, Callable[[Result], int], list[Result]]]:
        """What is drawn: a label, the number on the axis, and the steps, of which the last with a number counts."""
        steps = [r for r in self.results if r.name in ("decode", "verify")]
        if not steps:
            return []
        start = steps[0].context
        ours = [r for r in steps if r.name == "decode" and r.engine == "trigraph"]
        return [
            # Backwards: the decode that took turns with the other depths, not one of a sweep.
            ("tokens in a step", lambda r: r.k, [r for r in steps[::-1] if r.context == start and r.sequences == 1]),
            ("tokens of context", lambda r: r.context, [r for r in ours if r.sequences == 1]),
            ("texts in a step", lambda r: r.sequences, [r for r in ours if r.context == start]),
        ]
