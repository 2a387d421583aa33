"""One HTML page that shows an audit."""

from __future__ import annotations

from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from trigraph.models.errors import TrigraphError
from trigraph.runtime.audit.plan import Case
from trigraph.runtime.audit.report import MODES, Count, Outcome, Report

_MOST_EXAMPLES = 6
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
    try:
        path.write_text(environment.from_string(template).render(**_contents(report)), encoding="utf-8")
    except OSError as error:
        raise TrigraphError(f"{path}: cannot be written ({error.strerror})") from error


def _contents(report: Report) -> dict[str, Any]:
    shown = [name for name in report.conditions if Count.of(o for o in report.outcomes if o.condition == name).answers]
    return {
        "report": report,
        "total": report.total,
        "share": 100
        * (report.total.texts + report.total.failures)
        / max(1, report.total.answers + report.total.failures),
        "conditions": shown,
        "grids": {mode: rows for mode in MODES if (rows := _rows(report, mode, shown))},
        "counts": {name: [report.count(name, mode) for mode in MODES] for name in shown},
        "modes": MODES,
        "examples": _examples(report),
    }


def _rows(report: Report, mode: str, conditions: list[str]) -> list[tuple[str, list[_Cell]]]:
    """A row of cells for each prompt."""
    rows = []
    for case in report.expected:
        if case.sampling.name == mode:
            cells = [
                _cell([o for o in report.outcomes if o.case == case and o.condition == name]) for name in conditions
            ]
            rows.append((_short(case.prompt, 60), cells))
    return rows


def _cell(outcomes: list[Outcome]) -> _Cell:
    """The worst of the outcomes of a prompt under a condition."""
    count = Count.of(outcomes)
    if not outcomes:
        return _Cell("none", "not asked")
    if count.failures:
        return _Cell("failed", f"failed: {next(o.failure for o in outcomes if o.failure)}")
    if count.texts:
        token = "" if count.first_token is None else f", from token {count.first_token} on"
        return _Cell("text", f"another text{token}")
    if count.logprobs:
        return _Cell("logprobs", f"log-probabilities differ by up to {count.largest:.2g}")
    return _Cell("same", "the same")


def _examples(report: Report) -> list[_Example]:
    """The first difference of a text under each condition."""
    differ = [o for o in report.outcomes if o.answer is not None and o.difference is not None and o.difference.text]
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
