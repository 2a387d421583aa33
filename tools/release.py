"""Checks what a release is made of, and writes its notes: `python tools/release.py v0.1.0 FOLDER --notes FILE`.

The folder has all wheels and the source archive. Nothing is uploaded here: the workflow *wheels* does that.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename

from wheels import LARGEST, LARGEST_CUDA, NEWEST_GLIBC, glibc_of

ROOT = Path(__file__).parents[1]
PLATFORMS = {
    "trigraph": {"manylinux_x86_64", "manylinux_aarch64", "macosx_arm64", "win_amd64"},
    "trigraph-cuda": {"manylinux_x86_64"},
}
"""What the wheels of a release are for."""


def main() -> None:
    """Says all that is wrong, with status 1, or writes the notes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tag")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--notes", type=Path, help="write the version's section of CHANGELOG.md to this file")
    options = parser.parse_args()
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    wrong = [*check_versions(options.tag, changes, home()), *check_files(options.tag, options.folder)]
    if wrong:
        sys.exit("\n".join(f"error: {sentence}" for sentence in wrong))
    if options.notes:
        options.notes.write_text(section(changes, options.tag.removeprefix("v")), encoding="utf-8")


def home() -> str | None:
    """The address of the repository that a workflow runs in."""
    server, name = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    return f"{server}/{name}" if server and name else None


def check_versions(tag: str, changes: str, repository: str | None) -> Iterator[str]:
    """Says where the tag, the two projects, the changelog and the repository's address disagree."""
    for folder in (".", "packaging/cuda"):
        project = _project(folder)
        if tag != f"v{project['version']}":
            yield f"the tag is {tag}, and {folder}/pyproject.toml has version {project['version']}"
        named = project["urls"]["Repository"]
        if repository not in (None, named):
            yield f"{folder}/pyproject.toml: the Repository is {named}, and this is {repository}"
    if not re.search(rf"^## \[?{re.escape(tag.removeprefix('v'))}\]?.* \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE):
        yield f"CHANGELOG.md: no section of {tag.removeprefix('v')} with a date"


def check_files(tag: str, folder: Path) -> Iterator[str]:
    """Says which files are missing, too large, of another version, or of a platform that is not released."""
    name: str
    kinds: dict[str, set[str]] = {name: set() for name in PLATFORMS}
    sources = 0
    for file in sorted(folder.iterdir()):
        try:
            if file.suffix == ".whl":
                name, version, _, tags = parse_wheel_filename(file.name)
                kinds.setdefault(name, set()).update(_kind(tag.platform) for tag in tags)
            else:
                (name, version), sources = parse_sdist_filename(file.name), sources + 1
        except (InvalidSdistFilename, InvalidWheelFilename):
            yield f"{file.name}: neither a wheel nor a source archive"
            continue
        if f"v{version}" != tag:
            yield f"{file.name}: its version is not that of the tag {tag}"
        if file.stat().st_size > (limit := LARGEST_CUDA if name == "trigraph-cuda" else LARGEST):
            yield f"{file.name}: {file.stat().st_size:,} bytes; at most {limit:,}"
        if (glibc := glibc_of(file.name)) is not None and glibc > NEWEST_GLIBC:
            yield f"{file.name}: takes glibc {'.'.join(map(str, glibc))}; at most {'.'.join(map(str, NEWEST_GLIBC))}"
    for name, there in kinds.items():
        for kind in sorted(PLATFORMS.get(name, set()) ^ there):
            yield f"{name}: a wheel for {kind} is {'unexpected' if kind in there else 'missing'}"
    if sources != 1:
        yield f"{sources} source archives; expected one"


def section(changes: str, version: str) -> str:
    """The text below a version's heading."""
    match = re.search(rf"^## \[?{re.escape(version)}\]?[^\n]*\n(.*?)(?=^## |\Z)", changes, re.MULTILINE | re.DOTALL)
    return match[1].strip() + "\n" if match else ""


def _kind(platform: str) -> str:
    """A platform without the version of its system: manylinux_x86_64."""
    return re.sub(
        r"^(manylinux|macosx)[\d_]*?_(?=[a-z])", r"\1_", re.sub(r"^manylinux(1|2010|2014)_", "manylinux_", platform)
    )


def _project(folder: str) -> dict[str, Any]:
    content: dict[str, Any] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return content


if __name__ == "__main__":
    main()
