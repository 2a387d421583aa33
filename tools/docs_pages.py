"""Pages of the site that are made from the source: the command line's help, and the contract."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from trigraph.runtime.cli.app import app

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages; called by MkDocs."""
    contract = (ROOT / "exporter" / "CONTRACT.md").read_text(encoding="utf-8").replace("](../docs/", "](../")
    # Source files are not part of the site.
    contract = re.sub(r"\[([^\]]+)\]\(\.\./(?:tests|examples|custom_ops)/[^)]*\)", r"\1", contract)
    for name, text in {"reference/contract.md": contract, "reference/cli.md": command_line()}.items():
        files.append(File.generated(config, name, content=text))
    return files


def command_line() -> str:
    """Markdown of the commands with their options, in the groups of the help."""
    group: Any = typer.main.get_command(app)  # a class of click's, or of typer's copy of it
    parts = ["# Command line\n"]
    for name, command in group.commands.items():
        if command.hidden:
            continue
        context = command.context_class(command, info_name=name)
        usage = " ".join(["trigraph", name, *command.collect_usage_pieces(context)])
        parts.append(f"## trigraph {name}\n\n    {usage}\n\n{command.help or ''}\n")
        parts += _options(command)
    return "\n".join(parts)


def _options(command: Any) -> list[str]:
    panels: dict[str, list[str]] = {}
    for parameter in command.params:
        if parameter.param_type_name != "option" or parameter.name in ("help", "help_all"):
            continue
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        text = re.sub(r"\s+", " ", parameter.help or "").replace("|", "\\|")
        panel = getattr(parameter, "rich_help_panel", None) or "Options"
        panels.setdefault(panel, []).append(f"| {names} | {text} |")
    return [
        f"**{panel}**\n\n| option | meaning |\n|---|---|\n" + "\n".join(rows) + "\n" for panel, rows in panels.items()
    ]
