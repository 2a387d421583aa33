"""One HTML page that shows an audit."""

from __future__ import annotations

from collections import defaultdict
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from trigraph.models.errors import file_errors
from trigraph.runtime.audit.outcome import Count, Outcome
from trigraph.runtime.audit.plan import Case
from trigraph.runtime.audit.report import MODES, Report

_MOST_EXAMPLES = 6
_MOST_GROUPS = 60
_WORST_FIRST = ("failed", "text", "logprobs", "parts", "same")
_SHOWN = 160  # characters of a text


class _Cell(NamedTuple):
    kind: str
    title: str


class _Example(NamedTuple):
    condition: str
    mode: str
    prompt: str
    common: str
    alone: str
    other: str


def write_page(report: Report, path: Path) -> None:
    """Writes the page of a report. Raises TrigraphError when the file cannot be written."""
    template = files("trigraph.runtime.audit").joinpath("page.html.jinja").read_text()
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(template).render(**_contents(report))
    with file_errors(path, "written"):
        path.write_text(page, encoding="utf-8", errors="backslashreplace")  # texts may not be Unicode


def _contents(report: Report) -> dict[str, Any]:
    total, shown = Count.of(report.everything), report.shown()
    groups = report.groups()
    return {
        "report": report,
        "total": total,
        "all": len(report.everything),
        "far": total.texts + total.parts + total.failures,
        "conditions": shown,
        "grids": {mode: rows for mode in MODES if (rows := _rows(report, mode, shown))},
        "counts": {name: ([report.count(name, mode) for mode in MODES], report.count(name)) for name in shown},
        "modes": MODES,
        "groups": groups[:_MOST_GROUPS],
        "more": max(0, len(groups) - _MOST_GROUPS),
        "examples": _examples(report),
    }


def _rows(report: Report, mode: str, conditions: list[str]) -> list[tuple[str, list[_Cell]]]:
    """A row of cells for each prompt."""
    cells: dict[tuple[Case, str], list[Outcome]] = defaultdict(list)
    for outcome in report.everything:
        cells[outcome.case, outcome.condition].append(outcome)
    return [
        (_short(outcome.case.prompt, 60), [_cell(cells[outcome.case, name]) for name in conditions])
        for outcome in report.alone
        if outcome.case.sampling.name == mode
    ]


def _cell(outcomes: list[Outcome]) -> _Cell:
    """The worst of the outcomes of a prompt under a condition."""
    if not outcomes:
        return _Cell("none", "not asked")
    worst = min(outcomes, key=lambda outcome: _WORST_FIRST.index(outcome.kind))
    told = (
        f"{each.part} {each.what}" + (f" ({_short(each.detail, 80)})" if each.detail else "") for each in worst.findings
    )
    return _Cell(worst.kind, "; ".join(told) or "the same")


def _examples(report: Report) -> list[_Example]:
    """The first difference of a text under each condition."""
    differ = [outcome for outcome in report.outcomes if outcome.kind == "text"]
    firsts = [next(group) for _, group in groupby(differ, key=lambda outcome: outcome.condition)]
    return [_example(outcome, outcome.case, report) for outcome in firsts[:_MOST_EXAMPLES]]


def _example(outcome: Outcome, case: Case, report: Report) -> _Example:
    assert outcome.answer is not None and outcome.difference is not None
    alone, other, place = report.expected[case].text, outcome.answer.text, outcome.difference.character or 0
    return _Example(
        outcome.condition,
        case.sampling.name,
        _short(case.prompt, 80),
        ("…" if place > _SHOWN else "") + alone[max(0, place - _SHOWN) : place],
        _short(alone[place:], _SHOWN) or "(ends here)",
        _short(other[place:], _SHOWN) or "(ends here)",
    )


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
