"""Broken servers of many kinds: an audit notices each, and tells it from the others."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from support.servers.audited_server import running
from support.servers.lies import IDLE, LIES, PLAN, Lie
from trigraph.runtime.audit import Client, Report, audit
from trigraph.runtime.audit.asking import Asking
from trigraph.runtime.audit.page import write_page


def heard(report: Report) -> set[str]:
    """All that a report says is wrong."""
    return {f"{group.condition}: {group.part}: {group.what}" for group in report.groups()} | {
        reason for reason in report.unaudited.split("; ") if reason
    }


def _case(lie: Lie) -> Any:
    return pytest.param(lie, id=lie.name, marks=[pytest.mark.slow] if lie.slow else [])


@pytest.mark.parametrize("lie", [*map(_case, LIES)])
def test_a_lie_is_noticed(lie: Lie, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Asking, "sleep", lambda *_: None)
    server = lie.server()
    with running(server) as url:
        report = audit(Client(url), PLAN, server.progress)
    assert heard(report) == lie.says
    assert lie.status == (2 if report.unaudited else 0 if report.same else 1)
    assert IDLE in report.shown() or lie.slow
    write_page(report, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert all(f"<td>{each}</td>" in page for said in lie.says if ": " in said for each in said.split(": ")[:3])


def test_reports_of_lies_differ() -> None:
    alike = [(one.name, other.name) for one, other in combinations(LIES, 2) if one.says == other.says]
    assert not alike
