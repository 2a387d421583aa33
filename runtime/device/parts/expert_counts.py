"""How often experts were chosen: a small file beside a package, from which its next start knows who is used most."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trigraph.exporter.package.paths import file_inside
from trigraph.models.errors import one_line
from trigraph.models.staging import staged_file

Counts = NDArray[np.float64]
"""By expert of a layer."""

_log = logging.getLogger("trigraph.device")
_FORMAT = "trigraph expert counts 1"
_MOST_BYTES = 16 << 20


def read_counts(path: Path, experts: Mapping[str, int]) -> dict[str, Counts]:
    """The counts of the layers that have so many experts; none where the file is missing, damaged or another model's.

    A file that is of no use is told in the log.
    """
    try:
        if not os.path.lexists(path):
            return {}
        return _counts(json.loads(file_inside(path.parent, path.name, _MOST_BYTES).read_bytes()), experts)
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        _log.warning("%s: is not used, as it is damaged or of another model (%s)", path, one_line(str(error)))
        return {}


def write_counts(path: Path, counts: Mapping[str, Counts]) -> None:
    """Replaces the file; where that cannot be, the log says so."""
    layers = {name: [round(count, 1) for count in used.tolist()] for name, used in counts.items()}
    try:
        with staged_file(path) as stage:
            stage.write_text(json.dumps({"format": _FORMAT, "layers": layers}))
    except OSError as error:
        _log.info("%s: counts of experts are not kept (%s)", path, error.strerror or error)


def _counts(found: Any, experts: Mapping[str, int]) -> dict[str, Counts]:
    """Raises TypeError, ValueError or AttributeError for what is not of these layers."""
    if found.get("format") != _FORMAT:
        raise ValueError(f"its format is not {_FORMAT!r}")
    layers = {name: np.array(used, np.float64) for name, used in found.get("layers").items()}
    for name, used in layers.items():
        if used.shape != (experts.get(name),) or not np.all(np.isfinite(used) & (used >= 0)):
            raise ValueError(f"layer {name[:80]!r}")
    return layers
