"""The command `trigraph audit`: whether a server gives one answer to one text."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trigraph.models.errors import TrigraphError
from trigraph.runtime.audit import Client, Plan, Report
from trigraph.runtime.audit import audit as run_audit
from trigraph.runtime.audit.page import write_page
from trigraph.runtime.audit.plan import read_prompts, shipped_prompts
from trigraph.runtime.cli.arguments import AsJson
from trigraph.runtime.cli.console import progress_bars, say
from trigraph.runtime.cli.numbers import parse_counts

_KEY_VARIABLE = "TRIGRAPH_API_KEY"
_TABLE_WIDTH = 120


def audit(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of an OpenAI-compatible server.")],
    model: Annotated[str | None, typer.Option(help="Model to ask for (default: the first one of the server)")] = None,
    api: Annotated[str, typer.Option(help="auto, completions or chat; auto prefers completions.")] = "auto",
    api_key: Annotated[str | None, typer.Option(metavar="KEY", help=f"API key (default: ${_KEY_VARIABLE})")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prompts, one a line or a JSON list (default: 40 of several kinds)"),
    ] = None,
    tokens: Annotated[int, typer.Option("-n", "--max-tokens", help="Maximum tokens of an answer.")] = Plan.tokens,
    companions: Annotated[str, typer.Option(help="Numbers of other requests at once, comma-separated.")] = "2,8,32",
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help=f"Longest time of an answer (default: {Plan.timeout:.0f}; 60 with --quick)"
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Stop after about two minutes.")] = False,
    as_json: AsJson = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with a picture of the result.")
    ] = None,
) -> None:
    """Ask a server the same questions in circumstances that should not matter, and count the answers that differ.

    The exit status is 1 when any answer differs or is missing, and 2 when too few answers came to tell.
    """
    counts = parse_counts("--companions", companions)
    if html is not None and not html.absolute().parent.is_dir():
        raise TrigraphError(f"{html}: the folder does not exist; create it first")
    plan = Plan(shipped_prompts() if prompts is None else read_prompts(prompts), tokens=tokens, companions=counts)
    plan = plan.quick() if quick else plan
    if timeout is not None:
        plan = replace(plan, timeout=timeout)
    client = Client(url, model=model, api=api, key=api_key or os.environ.get(_KEY_VARIABLE))
    with progress_bars(of_bytes=False) as progress:
        report = run_audit(client, plan, progress)
    _show(report, as_json=as_json)
    if html is not None:
        write_page(report, html)
    if report.unaudited:
        raise TrigraphError(f"{report.url}: not audited: {report.unaudited}")
    if not report.same:
        raise typer.Exit(1)


def _show(report: Report, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.as_json()))
        return
    from rich.console import Console

    from trigraph.runtime.audit.tables import counts_table, findings_table

    console = Console()
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(counts_table(report))
    if (findings := findings_table(report)) is not None:
        console.print(findings)
    for note in report.notes():
        say(f"note: {note}")
