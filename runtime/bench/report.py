"""The figures of a run: a table for people, JSON for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from trigraph.runtime.bench.machine import Machine
from trigraph.runtime.bench.result import Result


@dataclass(frozen=True, kw_only=True)
class Run:
    """Which model was measured, on which machine, and when."""

    machine: Machine
    model: str
    layers: int
    """Trunk layers of the model: published figures may come from a model cut short."""
    started: str
    """ISO 8601, UTC."""
    repetitions: int
    """Samples of each kind."""
    weights: str
    """How those of our engine lay."""

    def as_json(self) -> dict[str, Any]:
        """All fields, for scripts."""
        return asdict(self)

    def table(self) -> Table:
        """The figures, for people."""
        raise NotImplementedError

    def provenance(self) -> Iterator[str]:
        """Lines that say what was measured, where and when."""
        machine = self.machine
        yield f"{self.model}, {self.layers} layers, {self.started}, {self.repetitions} repetitions"
        yield (
            f"{machine.processor}, {machine.instruction_set}, {machine.threads} "
            f"thread{'s' * (machine.threads != 1)} on {machine.cores} cores, load {machine.load:.2f}, "
            f"weights {self.weights}"
        )
        rates = f"reads {machine.read_gb_s:.1f} ({machine.min_read_gb_s:.1f} to {machine.max_read_gb_s:.1f}) GB/s"
        if machine.float32_gmac_s:
            rates += f", multiplies {machine.float32_gmac_s:.0f} (float32) and {machine.int8_gmac_s:.0f} (int8) G/s"
        yield rates


@dataclass(frozen=True, kw_only=True)
class Report(Run):
    """The times of steps."""

    results: Sequence[Result]

    def table(self) -> Table:
        """The figures, one step a line; `roofline` is the fraction of it that was reached."""
        table = Table(title=self.model, box=SIMPLE_HEAD, pad_edge=False)
        for heading in ("engine", "step"):
            table.add_column(heading, no_wrap=True)
        for heading in ("tokens", "sequences", "context", "ms", "min", "max", "tokens/s", "MB", "roofline"):
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
        table.caption = "\n".join([*lines, *self.provenance()])
        return table
