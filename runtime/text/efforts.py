"""How much a model is asked to reason: the efforts that clients name, and the nearest that a chat template takes."""

from __future__ import annotations

from collections.abc import Sequence

VARIABLE = "reasoning_effort"
NONE = "none"
EFFORTS = (NONE, "minimal", "low", "medium", "high", "xhigh", "max")
"""From the least to the most."""


def nearest_effort(effort: str, taken: Sequence[str]) -> str:
    """The effort of a template that takes `taken`: the nearest one, of two the higher; `none` only where it is asked.

    A name that is not in `EFFORTS` stays as it is: the template may know it.
    """
    if effort in taken or effort not in EFFORTS:
        return effort
    place = EFFORTS.index(effort)
    thinking = [other for other in taken if other != NONE] or [*taken]
    return min(thinking, key=lambda other: (abs(EFFORTS.index(other) - place), -EFFORTS.index(other)), default=effort)


def efforts_note(taken: Sequence[str]) -> str | None:
    """What the log says of a template that does not take every effort but `none`, which turns reasoning off."""
    readings: dict[str, list[str]] = {}
    for effort in EFFORTS[1:]:
        if (nearest := nearest_effort(effort, taken)) != effort:
            readings.setdefault(nearest, []).append(effort)
    if not readings:
        return None
    read = ", ".join(f"{' and '.join(efforts)} as {nearest}" for nearest, efforts in readings.items())
    return f"the chat template takes the reasoning efforts {', '.join(taken)}; it is given {read}"
