"""Synthetic GGUF files: random weights with the real structure, sizes and type mixes of published models."""

from __future__ import annotations

from pathlib import Path

from trigraph.models.geometries import geometry as find_geometry
from trigraph.models.synth.drafter import DRAFTER_QUANTS, write_synthetic_drafter
from trigraph.models.synth.layout import add_metadata, tensors
from trigraph.models.synth.mmproj import TOWER_QUANTS, write_synthetic_mmproj
from trigraph.models.synth.popularity import check_skew
from trigraph.models.synth.types import QUANTS, check_quant
from trigraph.models.synth.write import Progress, write_file

__all__ = [
    "DRAFTER_QUANTS",
    "QUANTS",
    "TOWER_QUANTS",
    "write_synthetic",
    "write_synthetic_drafter",
    "write_synthetic_mmproj",
]


def write_synthetic(
    geometry: str,
    path: Path,
    *,
    layers: int | None = None,
    vocab: int | None = None,
    experts: int | None = None,
    mtp: bool = True,
    quant: str = "Q4_K_M",
    seed: int = 0,
    skew: float = 0.0,
    hollow: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write a random model with the named geometry, deterministic by `seed`.

    `layers`, `vocab` and `experts` cut the trunk's layers, the vocabulary and the experts down; `mtp` False leaves
    the MTP head out.
    `skew`: of experts, the r-th most popular one is chosen about as often as r ** -skew; 0: all equally often.
    `hollow`: matrices are holes in the file, which read as zeros and take no disk.
    Dequantised matrices have mean zero and a root mean square of 1/sqrt(inputs), so activations keep a sane size.
    `progress` receives (tensor name, bytes written, bytes in all). The file appears when it is complete: a failure or
    an interruption leaves nothing behind. Raises TrigraphError for bad arguments and a path that cannot be written.
    """
    check_quant(quant)
    check_skew(skew)
    shape = find_geometry(geometry, layers=layers, vocab=vocab, experts=experts, mtp=mtp)
    write_file(
        path,
        shape.architecture,
        lambda writer: add_metadata(writer, shape, f"synthetic-{geometry}", quant),
        tensors(shape, quant, skew, hollow),
        seed,
        progress,
    )
