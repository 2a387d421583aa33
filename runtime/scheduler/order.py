"""Whose prompt is computed next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter

from trigraph.runtime.requests.request import Request

_PART = 10  # of its own tokens that a prompt may be delayed by: once from the start, once more as it is computed


def in_order(prompts: Iterable[Request]) -> Iterator[list[Request]]:
    """The order in which prompts share a round's piece of tokens; waiting ones get state when their turn comes.

    Higher priorities first. Within one, the shortest first by what is left to compute, as far as earlier ones bear it:
    later ones delay a prompt by a fifth of its tokens at most, half of that at once, half as it is computed. What is
    longer than an earlier one still bears is in a list behind it. So a short prompt waits for hardly any long one, and
    no prompt much longer than for the earlier ones alone: nobody starves.
    """
    for _, group in groupby(sorted(prompts, key=attrgetter("rank")), key=_class):
        rest = [*group]
        while rest:
            ready: list[Request] = []
            behind: list[Request] = []
            least = math.inf
            for request in rest:
                missing = request.missing
                (ready if missing <= least else behind).append(request)
                least = min(least, _patience(request, missing))
            yield sorted(ready, key=attrgetter("missing"))
            rest = behind


def count_delays(pieces: Mapping[Request, int], prompts: Iterable[Request]) -> None:
    """Takes note of the tokens that a round computes of later prompts than each of `prompts`."""
    for _, group in groupby(sorted(prompts, key=attrgetter("rank"), reverse=True), key=_class):
        later = 0
        for request in group:
            request.delay += later
            later += pieces.get(request, 0)


def _patience(request: Request, missing: int) -> int:
    """How many more tokens of later prompts it bears."""
    whole = request.lost + request.target_length - request.found
    return max(0, (2 * whole - missing) // _PART - request.delay)


def _class(request: Request) -> int:
    return request.rank[0]
