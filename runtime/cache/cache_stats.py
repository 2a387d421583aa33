"""Counts of what a prefix cache has done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class CacheStats:
    """What a cache has done so far."""

    hits: int = 0
    """Prompts that began with a checkpoint."""
    misses: int = 0
    """Prompts that began from nothing."""
    tokens_found: int = 0
    """Tokens of prompts that needed no computing."""
    tokens_missed: int = 0
    evictions: int = 0
