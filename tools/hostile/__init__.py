"""Requests that no honest client sends, of many kinds; each follows from its number."""

from hostile.attempt import Attempt, Kind
from hostile.bodies import absurd, bias, conversation, damaged, deep, huge, image, stops, unicode
from hostile.connections import cut, no_http, slow
from hostile.constraints import grammar, schema

__all__ = ["KINDS", "Attempt"]

KINDS: dict[str, tuple[Kind, int]] = {
    "damaged": (damaged, 12),
    "huge": (huge, 1),
    "deep": (deep, 2),
    "absurd": (absurd, 12),
    "bias": (bias, 1),
    "unicode": (unicode, 4),
    "cut": (cut, 6),
    "slow": (slow, 3),
    "no_http": (no_http, 3),
    "image": (image, 2),
    "schema": (schema, 3),
    "grammar": (grammar, 3),
    "stops": (stops, 2),
    "conversation": (conversation, 3),
}
"""By name, with how many of a hundred they are, more or less."""
