"""The figures of loads of requests: a table for people, JSON for scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from trigraph.runtime.bench.report import Run
from trigraph.runtime.bench.request_result import RequestResult

_HEADINGS = (
    "in flight",
    "tokens/s",
    "ours by",
    "first, ms",
    "p95",
    "gap, ms",
    "p95",
    "accepted",
    "rows",
    "MB",
    "roofline",
)


@dataclass(frozen=True, kw_only=True)
class RequestReport(Run):
    """Loads of requests."""

    prompt: int
    """Tokens of a prompt."""
    tokens: int
    """Tokens of a completion."""
    shared_prefix: int
    """Tokens with which all prompts of a load begin."""
    settings: Mapping[str, str]
    """What each engine was told."""
    results: Sequence[RequestResult]

    def table(self) -> Table:
        """The figures of an engine with so many requests in flight, a line each."""
        shared = f", {self.shared_prefix} of them shared" if self.shared_prefix else ""
        title = f"{self.model}: prompts of {self.prompt} tokens{shared}, completions of {self.tokens}"
        table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("engine", no_wrap=True)
        for heading in _HEADINGS:
            table.add_column(heading, justify="right", no_wrap=True)
        for r in self.results:
            table.add_row(
                r.engine,
                str(r.concurrency),
                f"{r.tokens_per_s:.1f}",
                "" if r.faster is None else f"{r.faster.median:.2f} ({r.faster.least:.2f}-{r.faster.most:.2f})",
                f"{r.first_token_ms:.0f}",
                f"{r.first_token_p95_ms:.0f}",
                f"{r.between_ms:.1f}",
                f"{r.between_p95_ms:.1f}",
                f"{r.accepted / r.drafted:.0%}" if r.drafted else "",
                "" if r.rows_per_round is None else f"{r.rows_per_round:.1f}",
                "" if r.peak_memory is None else f"{r.peak_memory / 1e6:.0f}",
                "" if r.roofline is None else f"{r.roofline:.2f}",
            )
        settings = [f"{engine}: {text}" for engine, text in self.settings.items()]
        table.caption = "\n".join([*settings, *self.provenance()])
        return table
