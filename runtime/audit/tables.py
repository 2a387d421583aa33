"""A report for a terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from trigraph.runtime.audit.report import MODES, Report

_MOST_ROWS = 30


def counts_table(report: Report) -> Table:
    """The counts of all conditions."""
    title = f"{_printable(report.model) or 'model'} at {report.url} ({report.api})"
    table = Table(title=Text(title), caption=Text(report.headline()))
    for name in ("asked", *(f"{mode}:\nother texts" for mode in MODES)):
        table.add_column(name, justify="left" if name == "asked" else "right", no_wrap=name == "asked")
    names = (
        "only log-\nprobabilities",
        "largest\ndifference",
        "first\ntoken",
        "only other\nparts",
        "failed",
    )
    for name in names:
        table.add_column(name, justify="right")
    for condition in report.shown():
        counts, both = [report.count(condition, mode) for mode in MODES], report.count(condition)
        table.add_row(
            condition,
            *(f"{each.texts} of {each.answers}" if each.answers else "-" for each in counts),
            str(both.logprobs) if report.logprobs else "-",
            f"{both.largest:.2g}" if report.logprobs else "-",
            "-" if both.first_token is None else str(both.first_token),
            str(both.parts),
            str(both.failures),
            style="" if both.same else "bold",
        )
    return table


def findings_table(report: Report) -> Table | None:
    """What is wrong, a line for each thing under each condition; None where nothing is."""
    groups = report.groups()
    if not groups:
        return None
    more = len(groups) - _MOST_ROWS
    table = Table(title="What differs", caption=f"and {more} more: see --json" if more > 0 else None)
    for name in ("asked", "part", "what", "answers", "the first one"):
        table.add_column(name, justify="right" if name == "answers" else "left")
    for group in groups[:_MOST_ROWS]:
        row = (group.condition, group.part, group.what, str(group.answers))
        table.add_row(*row, Text(_printable(group.detail)))
    return table


def _printable(text: str) -> str:
    """The text without what would control a terminal."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
