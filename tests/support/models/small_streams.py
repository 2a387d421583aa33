"""Small models with residual streams, of random weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from trigraph.models.geometries import GEOMETRIES
from trigraph.models.model import open_model
from trigraph.models.reference_layers import Array
from trigraph.models.reference_streams import StreamReference
from trigraph.models.synth import write_synthetic


def write_streams(
    path: Path,
    *,
    top: int = 512,
    heads: int = 4,
    layers: int = 4,
    quant: str = "F32",
    mtp: bool = True,
    seed: int = 1,
    rows: int | None = None,
    context: int = 4096,
) -> Path:
    """Write one whose rows of attention see `top` groups, by an indexer of `heads` heads; returns `path`.

    `rows`: of the table of n-grams, where it is to be larger than its hashes need. `context`: its longest text.
    """
    geometry = GEOMETRIES["tiny-streams"]
    assert geometry.streams is not None
    indexer = replace(geometry.streams.indexer, top=top, heads=heads)
    ngrams = geometry.streams.ngrams
    if rows is not None and ngrams is not None:
        ngrams = replace(ngrams, rows=rows)
    streams = replace(geometry.streams, indexer=indexer, ngrams=ngrams)
    changed = replace(geometry, layers=layers, streams=streams, context_length=context)
    with patch.dict(GEOMETRIES, {"tiny-streams": changed}):
        write_synthetic("tiny-streams", path, quant=quant, mtp=mtp, seed=seed)
    return path


def last_logits(path: Path, tokens: list[int]) -> Array:
    """The reference's logits [vocab] after the last token."""
    logits: Array = StreamReference(open_model(path)).trunk(tokens)[1][-1]
    return logits
