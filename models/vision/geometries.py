"""Dimensions of the vision towers of published models, and of two small ones for tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trigraph.models.errors import TrigraphError


@dataclass(frozen=True)
class VisionGeometry:
    """What a synthetic tower needs to know; `VisionConfig` documents the fields."""

    layers: int
    width: int
    heads: int
    ffn: int
    hidden: int
    table_side: int = 48


_SMALL = VisionGeometry(2, 96, 4, ffn=136, hidden=256, table_side=8)
_LARGE = VisionGeometry(27, 1152, 16, ffn=4304, hidden=5120)

VISION_GEOMETRIES = {
    "mmproj-qwen3.5-0.8b": VisionGeometry(12, 768, 12, ffn=3072, hidden=1024),
    "mmproj-qwen3.5-2b": VisionGeometry(24, 1024, 16, ffn=4096, hidden=2048),
    "mmproj-qwen3.5-4b": VisionGeometry(24, 1024, 16, ffn=4096, hidden=2560),
    "mmproj-qwen3.5-9b": replace(_LARGE, hidden=4096),
    "mmproj-qwen3.6-27b": _LARGE,
    "mmproj-qwen3.8-27b": _LARGE,
    "mmproj-qwen3.6-35b-a3b": replace(_LARGE, hidden=2048),
    "mmproj-tiny-dense": _SMALL,
    "mmproj-tiny-moe": _SMALL,
}
"""By `mmproj-` and the name of the text model."""


def vision_geometry(name: str, layers: int | None = None) -> VisionGeometry:
    """A geometry by name, with fewer layers where asked."""
    if name not in VISION_GEOMETRIES:
        raise TrigraphError(f"unknown geometry {name!r}; the known ones are {', '.join(VISION_GEOMETRIES)}")
    if layers is not None and layers < 1:
        raise TrigraphError(f"--layers is {layers}; it must be at least 1")
    known = VISION_GEOMETRIES[name]
    return known if layers is None else replace(known, layers=layers)
