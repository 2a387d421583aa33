"""Which waiting requests get state, and how much of their prompts a round computes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from trigraph.runtime.cache.prefix import common_prefix
from trigraph.runtime.cache.prefix_cache import MIN_GAIN, Found, PrefixCache
from trigraph.runtime.model import Model
from trigraph.runtime.requests.request import Request
from trigraph.runtime.scheduler.waiting import Waiting

# A short piece costs far more for each token than a long one, above all with experts. While few requests decode for
# each prompt, what a fuller batch brings is worth longer gaps between their tokens: at most this many seconds.
_FEW, _FILLING = 4, 0.15
# While many decode, a piece takes this part of a round of theirs: the time between their tokens stays within twice what
# it was, with what a round costs beside its steps. A single round may be slow by chance: the last ones count.
_SHARE, _RECENT = 0.75, 8


class Admission:
    """Lets requests in as far as rounds have room for their prompts. They get what the cache has of their tokens."""

    def __init__(self, model: Model, waiting: Waiting, cache: PrefixCache) -> None:
        self._model, self._steps, self._cache = model, model.steps, cache
        self._waiting = waiting
        self.blocked = False
        """Whether the next one has to wait until another one gives its state back."""

    def admit(self, active: list[Request], piece: int) -> Iterator[tuple[Request, Found | Exception]]:
        """Starts requests, for rounds of `piece` tokens of prompts; the caller makes each one active.

        With each comes what the cache had for it, or why it cannot start.
        """
        while (request := self._waiting.first) is not None and len(active) < self._steps.state.sequences:
            if request.completion.done:  # cancelled before it began
                self._waiting.discard(request)
                continue
            prompts = [other for other in active if not other.decodes]
            if self.blocked or any(_shares(request, other) for other in prompts):
                return
            going = [other for other in prompts if not other.images.waiting]
            if sum(other.target_length - other.state.length for other in going) >= piece:
                return
            found: Found | Exception | None
            try:
                found = self._start(request, alone=not active)
            except Exception as error:  # a request that fails, fails alone
                found = error
            if found is None:
                self.blocked = True
                return
            self._waiting.discard(request)
            yield request, found

    def piece(self, active: list[Request]) -> int:
        """How many tokens of prompts a round may compute without those that decode waiting too long for it."""
        decoding = [request for request in active if request.decodes]
        if not decoding:
            return self._steps.chunk
        milliseconds = self._model.scheduling.prefill_ms
        if milliseconds is not None:
            seconds = milliseconds / 1000
        else:
            seconds = _SHARE * max(map(_round_seconds, decoding))
            room = self._steps.state.sequences - len(active)
            prompts = len(active) - len(decoding) + min(len(self._waiting), room)
            if _FEW * prompts >= len(decoding):
                seconds = max(seconds, _FILLING)
        return min(max(1, self._model.prefill_speed.tokens(seconds)), self._steps.chunk)

    def cut(self, prompts: list[Request], piece: int) -> list[tuple[Request, int]]:
        """The next pieces of the prompts, in order, `piece` tokens at most.

        None goes past a checkpoint, or into an image that is not read yet.
        """
        pieces = []
        for request in prompts:
            length = request.state.length
            stop = min([stop for stop in request.checkpoints if stop > length], default=request.target_length)
            if size := min(piece, request.images.reach(length, stop) - length):
                pieces.append((request, size))
                piece -= size
        return pieces

    def _start(self, request: Request, *, alone: bool) -> Found | None:
        """Gives the request a sequence with what the cache has of its tokens; None when there is no room.

        One that is alone begins anyway: it may end before it needs all of its room.
        """
        state, target = self._steps.state, request.target
        if not self._cache.make_room(1, 1) and not alone:
            return None
        found = self._cache.find(target, request.images.placed, needs_row=not request.completion.ids)
        found.sequence.images = request.images.placed
        request.sequence, request.found = found.sequence, found.sequence.length
        needed = state.room([found.sequence], [min(len(target) + self._steps.max_pending, self._model.context)])
        if not self._cache.make_room(*needed) and not alone:
            self._steps.release(found.sequence)
            request.sequence = None
            return None
        if request.completion.started is None:
            request.completion.started = time.perf_counter()
            request.completion.reused = min(found.sequence.length, len(request.tokens))
        if found.parted is not None:
            request.checkpoints.add(found.parted)
        return found


def _round_seconds(request: Request) -> float:
    """How long its last rounds took, without pieces of prompts; 0 before the first one."""
    recent = [round.seconds for round in request.completion.rounds[-_RECENT:]]
    return statistics.median(recent) if recent else 0.0


def _shares(request: Request, other: Request) -> bool:
    """Whether the prompt begins like one that is being computed: then it waits for that, and takes it over."""
    common = common_prefix(request.target, other.target)
    if common - other.found < MIN_GAIN or other.state.length >= common:
        return False
    if common < other.target_length:  # the end of the other prompt is a checkpoint anyway
        other.checkpoints.add(min(common, request.target_length - 1))
    return True
