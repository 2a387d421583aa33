"""What the documentation tells to type: commands are commands, formats parse, and what is named is there."""

from __future__ import annotations

import ast
import importlib
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from docs_pages import REFERENCE, pages
from support.project.documents import ROOT, anchors, blocks, commands, documents, links
from trigraph.custom_ops.registry import operators
from trigraph.models.errors import TrigraphError
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime.cli.app import app, main

PROGRAMS = ("trigraph", ".venv/bin/trigraph", "/opt/trigraph/bin/trigraph")
FOLDERS = ("docs", "models", "exporter", "custom_ops", "runtime", "tests", "tools", "examples", "packaging")
FOREIGN = {
    "--help", "--install-completion", "--ctx", "--gpu", "--continuous-batching", "--gpus", "--repo", "--strict",
    "--metrics", "--slots", "--tags",
}  # fmt: skip
"""Options of other programs, those that llama-server has and we have not, and those of every command."""
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def told() -> list[tuple[str, list[str]]]:
    """Every command of the documentation, with its place."""
    return [(block.place, words) for block in blocks("", "sh", "bash", "console") for words in commands(block)]


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """The commands by name."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands.items())


def test_commands_of_trigraph_parse(known: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As if they were typed where the example configuration lies; nothing is run."""
    monkeypatch.chdir(ROOT / "examples" / "deploy")
    asked = [(place, words[1:]) for place, words in told() if words[0] in PROGRAMS and words[1:2] != ["--help"]]
    wrong = [f"{place}: {' '.join(words)}: {why}" for place, words in asked for why in refused(known, words)]
    assert not wrong, "\n".join(wrong)
    assert len(asked) > 50


RUN = ("run", "inspect", "export")
MODELS = ("MODEL.gguf", "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf", "models/tiny/tiny-q8_0.gguf")


def runnable() -> list[list[str]]:
    """Commands that end by themselves, each once, with the shipped model and at most four tokens."""
    found = []
    for _, words in told():
        if words[0] not in PROGRAMS or words[1:2] == ["--help"] or words[1] not in RUN or not {*MODELS} & {*words}:
            continue
        command = [str(TINY_GGUF) if word in MODELS else word for word in words[1:]]
        if {"--image", "-hf", "--grammar", "--device", "-f", "--receipt-key"} & {*command}:
            continue
        if command[0] == "run":
            if "-p" not in command:
                continue
            command += ["-n", "4"]
        if command not in found:
            found.append(command)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("words", runnable(), ids=lambda words: " ".join(Path(word).name for word in words))
def test_commands_run(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["trigraph", *words])
    try:
        main()
    except SystemExit as ended:
        assert not ended.code


def refused(known: dict[str, Any], words: list[str]) -> Iterator[str]:
    """Why a command would be refused."""
    name, *rest = words
    if name not in known:
        yield "no such command"
        return
    try:
        known[name].make_context(name, [word for word in rest if word != "..."])
    except (TrigraphError, typer.BadParameter) as error:
        yield str(error)


@pytest.mark.parametrize(
    "words",
    [["runn", "x"], ["run", "x", "--max-waiting", "3"], ["run", "x", "y"], ["serve", "-np", "x"]],
)
def test_a_wrong_command_is_seen(known: dict[str, Any], words: list[str]) -> None:
    assert list(refused(known, words))


def test_options_in_sentences_exist(known: dict[str, Any]) -> None:
    ours = {option for made in known.values() for p in made.params for option in (*p.opts, *p.secondary_opts)}
    programs = [file for folder in ("tools", "tests", "examples") for file in (ROOT / folder).rglob("*.[pc][yc]")]
    sources = "".join(file.read_text(encoding="utf-8") for file in programs)
    wrong = {
        f"{file.relative_to(ROOT)}: {option}"
        for file in documents()
        if file.name != "CHANGELOG.md"
        for code in re.findall(r"`([^`\n]+)`", file.read_text(encoding="utf-8"))
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", code)
        if option not in ours | FOREIGN and f'"{option}"' not in sources
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_targets_and_programs_exist() -> None:
    wrong = [f"{place}: {' '.join(words)}: {why}" for place, words in told() for why in _missing(words)]
    assert not wrong, "\n".join(wrong)


def _missing(words: list[str]) -> Iterator[str]:
    if words[0] == "make":
        targets = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
        yield from (
            f"no target {name}" for name in targets if not re.search(rf"^{re.escape(name)}\b.*:", MAKEFILE, re.M)
        )
    if words[0].endswith("python") and len(words) > 1 and words[1].startswith(("tools/", "examples/")):
        if not (program := ROOT / words[1]).is_file():
            yield f"no file {words[1]}"
            return
        source = program.read_text(encoding="utf-8")
        options = {word.partition("=")[0] for word in words[2:] if word.startswith("--")}
        yield from (f"no option {option}" for option in sorted(options) if option not in source)
    for word in words[1:]:
        if re.fullmatch(rf"(\./)?(?:{'|'.join(FOLDERS)})/[\w./-]+", word) and not (ROOT / word).exists():
            yield f"no {word}"


@pytest.mark.parametrize("language", ["toml", "json", "yaml"])
def test_formats_parse(language: str) -> None:
    read = {"toml": tomllib.loads, "json": json.loads, "yaml": yaml.safe_load}[language]
    for block in blocks(language):
        assert read(block.text) is not None, block.place


def test_bodies_of_requests_are_json() -> None:
    bodies = [(place, words[words.index("-d") + 1]) for place, words in told() if words[0] == "curl" and "-d" in words]
    assert bodies
    for place, body in bodies:
        assert json.loads(body), place


def test_python_compiles_and_imports() -> None:
    names = 0
    for block in blocks("python"):
        compile(block.text, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.Import):
                names += sum(importlib.import_module(name.name) is not None for name in node.names)
            elif isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module or "")
                missing = [name.name for name in node.names if not hasattr(module, name.name)]
                assert not missing, f"{block.place}: {node.module} has no {missing}"
                names += len(node.names)
    assert names >= 3


def test_names_that_python_blocks_use_of_trigraph_exist() -> None:
    public = importlib.import_module("trigraph.runtime")
    for block in blocks("python"):
        for name in re.findall(r"\btrigraph\.(\w+)", block.text):
            assert hasattr(public, name) or name in ("runtime", "exporter", "models"), f"{block.place}: trigraph.{name}"


def test_paths_in_sentences_exist() -> None:
    named = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+)`")
    wrong = [
        f"{file.relative_to(ROOT)}: {path}"
        for file in documents()
        if file.name != "CHANGELOG.md"
        for path in named.findall(file.read_text(encoding="utf-8"))
        if not (ROOT / path).exists() and not (file.parent / path).exists()
    ]
    assert not wrong, "\n".join(wrong)


def test_no_link_is_dead() -> None:
    """In a repository's view, where nothing is built."""
    wrong = []
    for file in documents():
        for path, anchor in links(file):
            target = (file.parent / path).resolve() if path else file
            if not target.exists():
                wrong.append(f"{file.relative_to(ROOT)}: no file {path}")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                wrong.append(f"{file.relative_to(ROOT)}: no heading {path}#{anchor}")
    assert not wrong, "\n".join(wrong)


def test_the_list_of_operators_is_whole() -> None:
    text = (ROOT / "custom_ops" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^- \*\*`(\w+)`\*\*", text, re.MULTILINE)) == set(operators())


def test_pages_made_from_the_source_are_up_to_date() -> None:
    for name, text in pages().items():
        kept = (REFERENCE / name).read_text(encoding="utf-8") if (REFERENCE / name).is_file() else ""
        assert kept == text, f"docs/reference/{name} is stale: run `python tools/docs_pages.py`"
