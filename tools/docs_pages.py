"""Writes the pages that are made from the source: the command line, the public Python names, and the contract.

`make docs` runs it. The pages are kept in the repository, so that they can be read there; a test compares them.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import typer.main

from trigraph.runtime import api
from trigraph.runtime.cli.app import app

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
_NOTE = "<!-- Written by `make docs` from {}; edit that. -->\n\n"


def main() -> None:
    """Writes the pages."""
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """The pages by their file's name."""
    return {
        "api.md": _NOTE.format("docstrings") + python_names(),
        "cli.md": _NOTE.format("the commands' help") + command_line(),
        "contract.md": _NOTE.format("exporter/CONTRACT.md") + contract(),
    }


def contract() -> str:
    """The contract, whose links to source files are plain text: those are no part of the site."""
    text = (ROOT / "exporter" / "CONTRACT.md").read_text(encoding="utf-8").replace("](../docs/", "](../")
    return re.sub(r"\[([^\]]+)\]\(\.\./(?:tests|examples|custom_ops)/[^)]*\)", r"\1", text)


def command_line() -> str:
    """Markdown of the commands with their options, in the groups of the help."""
    group: Any = typer.main.get_command(app)  # a class of click's, or of typer's copy of it
    parts = ["# Command line\n\nEvery command has `--help`; most have `--help-all`, which lists all options.\n"]
    for name, command in group.commands.items():
        if not command.hidden:
            context = command.context_class(command, info_name=name)
            usage = " ".join(["trigraph", name, *command.collect_usage_pieces(context)])
            text = inspect.cleandoc(command.help or "")
            parts += [f"## trigraph {name}\n\n```text\n{usage}\n```\n\n{text}\n", *_options(command)]
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


def python_names() -> str:
    """Markdown of the public names with their signatures and docstrings, in the order of the alphabet."""
    parts = ["# Python names\n\nAll that `trigraph.runtime` offers; [Python](python.md) shows how to use it.\n"]
    for name in api.__all__:
        value = getattr(api, name)
        parts += [f"## {name}\n", *_described(name, value)]
        if inspect.isclass(value):
            if dataclasses.is_dataclass(value):
                parts += _fields(value)
            for member, inner in _members(value):
                parts += [f"### {name}.{member}\n", *_described(member, inner)]
    return "\n".join(parts)


def _described(name: str, value: Any) -> Iterator[str]:
    target = getattr(value, "__func__", value)
    exception = inspect.isclass(value) and issubclass(value, Exception)
    if not (isinstance(value, property | cached_property) or dataclasses.is_dataclass(value) or exception):
        yield f"```py\n{_signature(name, target)}\n```\n"
    yield (inspect.getdoc(target) or "") + "\n"


def _signature(name: str, function: Any) -> str:
    """A call with its types, each parameter in a line of its own where one line is too long."""
    signature = inspect.signature(function)
    given = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    # Annotations are texts, which signatures show as such.
    plain = re.sub(r"(: |-> )'([^']*)'", r"\1\2", f"{name}{signature.replace(parameters=given)}")
    if len(plain) <= 100:
        return plain
    texts = [re.sub(r"<function (\w+) at \w+>", r"\1", re.sub(r": '([^']*)'", r": \1", str(p))) for p in given]
    starred = next((i for i, p in enumerate(given) if p.kind is p.KEYWORD_ONLY), None)
    if starred is not None:
        texts.insert(starred, "*")
    return "\n".join([f"{name}(", *(f"    {text}," for text in texts), ")" + plain.rpartition(")")[2]])


def _fields(kind: type[Any]) -> Iterator[str]:
    """A table of a dataclass's fields; what a string below one says of it is read from the source."""
    source = inspect.getsource(kind)
    rows = []
    for field in dataclasses.fields(kind):
        if field.name.startswith("_"):
            continue
        match = re.search(rf'^    {field.name}: [^\n]*\n    """(.*?)"""', source, re.MULTILINE | re.DOTALL)
        text = re.sub(r"\s+", " ", match[1]).replace("|", "\\|") if match else ""
        default = "" if field.default is dataclasses.MISSING else f"`{field.default!r}`".replace("|", "\\|")
        kinds = str(field.type).replace("|", "\\|")
        rows.append(f"| `{field.name}` | `{kinds}` | {default} | {text} |")
    yield "| field | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _members(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Public methods and properties with a docstring, those of our own bases too."""
    ours = [base for base in reversed(kind.__mro__) if base.__module__.startswith("trigraph.")]
    for name, value in {name: value for base in ours for name, value in vars(base).items()}.items():
        public = not name.startswith("_") and (
            inspect.isroutine(value) or isinstance(value, property | cached_property)
        )
        if public and inspect.getdoc(getattr(value, "__func__", value)):
            yield name, value


if __name__ == "__main__":
    main()
