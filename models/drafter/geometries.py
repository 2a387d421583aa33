"""Block drafters of published models, and of the small ones for tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trigraph.models.drafter.config import CANDIDATES, KINDS, BlockDrafterConfig
from trigraph.models.errors import TrigraphError
from trigraph.models.geometries import GEOMETRIES, Geometry, geometry


@dataclass(frozen=True)
class DrafterGeometry:
    """What a synthetic drafter needs to know."""

    config: BlockDrafterConfig
    target: Geometry
    """The model that it is for."""


def _large(name: str, target: str, layers: int, ffn: int, taps: tuple[int, ...], mask: int) -> BlockDrafterConfig:
    """DFlash2, as it is published."""
    return BlockDrafterConfig(
        name=name, kind="dflash2", block=8, mask=mask, from_anchor=False, candidates=16, taps=taps, layers=layers,
        hidden=GEOMETRIES[target].hidden, heads=32, kv_heads=8, head_dim=128, rope_dims=128, rope_theta=1e7,
        rms_eps=1e-6, ffn=ffn, window=2048, sliding=(True,) * layers, causal=(False,) * layers, conv_kernel=2,
        conv_group=16, rank=256, logit_scale=1.0, logit_cap=0.0,
    )  # fmt: skip


def _small(kind: str) -> BlockDrafterConfig:
    """A drafter for any of the small models with one residual stream: what it depends on is the same in all."""
    paired = kind == "dflash2"
    return BlockDrafterConfig(
        name=f"{kind}-tiny", kind=kind, block=8, mask=500, from_anchor=kind == "dspark",
        candidates=8 if paired else CANDIDATES, taps=(1, 3), layers=2, hidden=256, heads=4, kv_heads=2, head_dim=64,
        rope_dims=64, rope_theta=1e7, rms_eps=1e-6, ffn=384, window=0, sliding=(False,) * 2, causal=(False,) * 2,
        conv_kernel=3 if paired else 0, conv_group=32 if paired else 0, rank=0 if kind == "dflash" else 32,
        logit_scale=1.0, logit_cap=0.0,
    )  # fmt: skip


_LARGE = {
    "qwen3.8-27b": (5, 17408, (6, 20, 34, 48, 62), 248070),
    "qwen3.6-35b-a3b": (6, 6144, (2, 7, 12, 17, 23, 28, 33, 38), 248077),
}
DRAFTER_GEOMETRIES = {
    **{f"dflash2-{name}": (name, _large(f"dflash2-{name}", name, *sizes)) for name, sizes in _LARGE.items()},
    **{f"{kind}-{name}": (name, _small(kind)) for kind in KINDS for name in ("tiny-dense", "tiny-moe", "tiny-next")},
}
"""The name of the model, and the configuration, by `KIND-MODEL`."""


def drafter_geometry(name: str, layers: int | None = None, vocab: int | None = None) -> DrafterGeometry:
    """A geometry by name, for a model with fewer layers or tokens where asked."""
    if name not in DRAFTER_GEOMETRIES:
        raise TrigraphError(f"unknown geometry {name!r}; the known ones are {', '.join(DRAFTER_GEOMETRIES)}")
    model, config = DRAFTER_GEOMETRIES[name]
    target, whole = geometry(model, layers=layers, vocab=vocab), GEOMETRIES[model].layers
    taps = tuple(max(1, tap * target.layers // whole) for tap in config.taps)
    return DrafterGeometry(replace(config, taps=taps, mask=min(config.mask, target.vocab - 1)), target)
