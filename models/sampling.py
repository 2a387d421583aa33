"""How a GGUF file suggests to sample."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from trigraph.models.errors import TrigraphError, quote

_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repeat_penalty": "general.sampling.penalty_repeat",
    "penalty_window": "general.sampling.penalty_last_n",
}


@dataclass(frozen=True)
class SuggestedSampling:
    """Values for a sampler by its names of them; None where the file suggests nothing."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    penalty_window: int | None = None

    def given(self) -> dict[str, Any]:
        """The values that there are."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


def suggested_sampling(metadata: Mapping[str, Any]) -> SuggestedSampling:
    """What `general.sampling.*` says. Raises TrigraphError where that is no number."""
    values: dict[str, Any] = {}
    for name, key in _KEYS.items():
        value = metadata.get(key)
        if value is None:
            continue
        whole = name in ("top_k", "penalty_window")
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not math.isfinite(value):
            raise TrigraphError(f"{key} is {quote(value)}; it must be {'an integer' if whole else 'a number'}")
        values[name] = value
    return SuggestedSampling(**values)
