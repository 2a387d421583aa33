"""The folder that an export writes: it appears whole or not at all, and never in the place of something else."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trigraph.exporter.package.fingerprint import sha256_of_sample
from trigraph.exporter.package.manifest import EXPERT_COUNTS, FILE_NAME, GRAPHS, SIDE_FILE
from trigraph.exporter.package.reader import is_package
from trigraph.models.errors import TrigraphError
from trigraph.models.staging import staged_folder

_TEXTS = ("tokenizer.json", "chat_template.jinja")
_OWN_FILES = {FILE_NAME, SIDE_FILE, EXPERT_COUNTS, *_TEXTS, *(f"{graph}.onnx" for graph in GRAPHS)}


def check_target(out: Path, sources: Sequence[Path], *, replace: bool) -> None:
    """Refuse a target that is not new, an empty folder, or, with `replace`, a package that can go without loss.

    `sources` are the weight files of the new package.
    """
    if not os.path.lexists(out):
        return
    if out.is_symlink() or not out.is_dir():
        raise TrigraphError(f"{out}: exists and is not a folder; choose another output folder")
    if not is_package(out) and any(out.iterdir()):
        raise TrigraphError(
            f"{out}: exists and is not a trigraph package; choose another output folder, or empty this one"
        )
    if not replace and is_package(out):
        raise _taken(out)
    for path in out.iterdir():
        if path.is_dir() or (path.suffix != ".gguf" and path.name not in _OWN_FILES):
            raise TrigraphError(f"{path}: is not part of a package, and would be lost; move it away")
        single = path.suffix == ".gguf" and path.lstat().st_nlink == 1 and not path.is_symlink()
        if single and not any(_same(path, source) for source in sources):
            raise TrigraphError(f"{path}: is weights of another model, with no other link to them; move or remove them")


def _same(path: Path, source: Path) -> bool:
    """Whether two weight files are one, or one a copy of the other."""
    if path.samefile(source):
        return True
    return path.stat().st_size == source.stat().st_size and sha256_of_sample(path) == sha256_of_sample(source)


@contextmanager
def staged(out: Path, *, replace: bool) -> Iterator[Path]:
    """A new folder that takes the place of `out` when the block ends well and vanishes when it does not.

    Raises TrigraphError when the folder cannot be written, or, without `replace`, a package has appeared there.
    """
    try:
        with staged_folder(out, replace=replace) as folder:
            yield folder
    except FileExistsError as error:
        raise _taken(out) from error
    except OSError as error:
        raise TrigraphError(
            f"{out}: cannot be written: {error.strerror or error}; choose another output folder"
        ) from error


def _taken(out: Path) -> TrigraphError:
    return TrigraphError(f"{out}: holds a package already; --force replaces it")
