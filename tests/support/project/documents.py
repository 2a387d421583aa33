"""The project's Markdown, taken apart: blocks of code, the commands in them, links and anchors."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[3]
FOLDERS = ("docs", "models", "exporter", "custom_ops", "runtime", "tests", "tools", "examples", "packaging", ".github")
_MARKDOWN = MarkdownIt().enable("table")


@dataclass(frozen=True)
class Block:
    """A block of code."""

    file: Path
    line: int
    language: str
    """Empty for an indented block, which is a shell's unless it shows a format."""
    text: str

    @property
    def place(self) -> str:
        """FILE:LINE."""
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def documents() -> list[Path]:
    """All Markdown files of the checkout, but what is built or installed there."""
    files = [*ROOT.glob("*.md"), *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.md"))]
    return sorted(file for file in files if "bundle" not in file.parts and "node_modules" not in file.parts)


@cache
def _tokens(file: Path) -> list[Token]:
    return _MARKDOWN.parse(file.read_text(encoding="utf-8"))


def blocks(*languages: str) -> list[Block]:
    """The blocks of some languages, `""` for indented ones."""
    return [
        Block(file, (token.map or [0])[0] + 1, token.info.strip(), token.content)
        for file in documents()
        for token in _tokens(file)
        if token.type in ("code_block", "fence") and token.info.strip() in languages
    ]


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a block, in words: without comments, prompts, variables and what a shell does with output."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in lines):  # a transcript
        lines = [line[2:] for line in lines if line.startswith("$ ") and "..." not in line]
    for line in lines:
        try:
            lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
            lexer.whitespace_split = True
            words = list(lexer)
        except ValueError:  # no shell: a quotation mark in a sentence
            continue
        command: list[str] = []
        for word in [*words, ";"]:
            if re.fullmatch(r"[&|;<>]+", word):
                if command:
                    yield command
                command = [">"] if word[0] in "<>" else []  # a file name follows, which is no command
            elif command or not re.fullmatch(r"[A-Z_]+=\S*", word):
                command.append(word)


def links(file: Path) -> Iterator[tuple[str, str]]:
    """The relative links and pictures of a file: a path, which may be empty, and an anchor, which may be."""
    for token in _tokens(file):
        for child in token.children or ():
            target = child.attrGet("href") or child.attrGet("src")
            if isinstance(target, str) and not re.match(r"[a-z]+:", target):
                path, _, anchor = target.partition("#")
                yield path, anchor


@cache
def anchors(file: Path) -> frozenset[str]:
    """The anchors of a file's headings, as GitHub and the site name them."""
    tokens = _tokens(file)
    titles = [tokens[i + 1] for i, token in enumerate(tokens) if token.type == "heading_open"]
    texts = ["".join(child.content for child in title.children or ()) for title in titles]
    return frozenset(_slug(text) for text in texts)


def _slug(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", plain).strip())
