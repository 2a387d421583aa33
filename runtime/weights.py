"""Weight files while they are mapped: ONNX Runtime reads them for as long as a model is loaded."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from pathlib import Path

from trigraph.models.errors import TrigraphError


class MappedWeights:
    """Holds weight files open, to notice when somebody writes to them.

    A file that is deleted, or replaced by another one of its name, lives on for those who have it open. One that is
    written in place changes under the model; one that is cut short in place ends the process at the next read.
    """

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        self._files: list[tuple[Path, int, tuple[int, int]]] = []
        for path in paths:
            try:
                descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            except OSError as error:
                raise TrigraphError(f"{path}: cannot be read: {error.strerror}") from error
            weakref.finalize(self, os.close, descriptor)
            self._files.append((path, descriptor, _stamp(descriptor)))

    def check(self) -> None:
        """Raise TrigraphError when a file was written since the model was loaded."""
        for path, descriptor, stamp in self._files:
            if _stamp(descriptor) != stamp:
                raise TrigraphError(f"{path}: the weights were written to while in use; load the model again")


def _stamp(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns
