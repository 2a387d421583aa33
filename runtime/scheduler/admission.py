"""Which waiting requests get state, and how much of their prompts a round computes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from itertools import chain

from trigraph.runtime.cache.prefix import common_prefix
from trigraph.runtime.cache.prefix_cache import MIN_GAIN, Found, PrefixCache
from trigraph.runtime.requests.request import Request
from trigraph.runtime.scheduler.model import Model
from trigraph.runtime.scheduler.order import count_delays, in_order
from trigraph.runtime.scheduler.room import Room
from trigraph.runtime.scheduler.waiting import Waiting
from trigraph.runtime.state.sequence import Sequence

# A short piece costs far more for each token than a long one, above all with experts. While few requests decode for
# each prompt, what a fuller batch brings is worth longer gaps between their tokens: at most this many seconds.
_FEW, _FILLING = 4, 0.15
# While many decode, a piece takes this part of a round of theirs: the time between their tokens stays within twice what
# it was, with what a round costs beside its steps. A single round may be slow by chance: the last ones count.
_SHARE, _RECENT = 0.75, 8
# Or this part, where that brings twice as many tokens a second: where a piece reads all weights, 200 tokens may take
# little longer than one.
_LONGER, _PAYS = 1.25, 2


class Admission:
    """Lets requests in when it is their turn. They get what the cache has of their tokens."""

    def __init__(self, model: Model, waiting: Waiting, cache: PrefixCache, room: Room) -> None:
        self._model, self._steps, self._cache = model, model.steps, cache
        self._waiting, self._room = waiting, room
        self._refused = set[Request]()  # for whom there was no room, until there may be more

    def retry(self) -> None:
        """To be called when a request has given its state back: there may be room for others."""
        for request in self._refused:
            request.found = -1  # the cache has changed, too
        self._refused.clear()

    def admit(self, active: list[Request], piece: int) -> Iterator[tuple[Request, Found | Exception]]:
        """Starts requests that take part in a piece of `piece` tokens; the caller makes each one active.

        With each comes what the cache had for it, or why it cannot start.
        """
        if len(active) >= self._steps.state.sequences:
            return
        self._look_up()
        going = [request for request in active if not request.decodes and not request.images.waiting]
        waiting = [request for request in self._waiting.all if not _awaits(request)]
        for turn in in_order([*going, *waiting]):
            refused: list[Request] = []
            for request in turn:
                if request.sequence is not None:
                    piece -= request.missing
                    continue
                if request in self._refused:
                    refused.append(request)
                    continue
                shares = any(_shares(request, other) for other in active if not other.decodes)
                if piece <= 0 or len(active) >= self._steps.state.sequences:
                    return
                if shares:
                    continue
                if (found := self._try(request, active)) is None:
                    refused.append(request)
                    continue
                for other in refused:  # for the room that it takes
                    other.delay += self._steps.state.limits.page_size
                self._waiting.discard(request)
                yield request, found
                if request.sequence is not None:  # unless it has failed
                    piece -= request.missing
            if refused:  # those behind would pass it
                return

    def piece(self, active: list[Request]) -> int:
        """How many tokens of prompts a round may compute without those that decode waiting too long for it."""
        decoding = [request for request in active if request.decodes]
        if not decoding:
            return self._steps.chunk
        speed, milliseconds, least = self._model.prefill_speed, self._model.scheduling.prefill_ms, 1
        if milliseconds is not None:
            seconds = milliseconds / 1000
        else:
            took, least = max(map(_round_seconds, decoding)), len(decoding)  # as many rows, and about as long
            short, long = speed.tokens(_SHARE * took), speed.tokens(_LONGER * took)
            seconds = took * (_LONGER if long / _LONGER >= _PAYS * short / _SHARE else _SHARE)
            room = self._steps.state.sequences - len(active)
            prompts = len(active) - len(decoding) + min(len(self._waiting), room)
            if _FEW * prompts >= len(decoding):
                seconds = max(seconds, _FILLING)
        return min(max(least, speed.tokens(seconds)), self._steps.chunk)

    def cut(self, active: list[Request], prompts: list[Request], piece: int) -> list[tuple[Request, int]]:
        """The next pieces of the prompts, `piece` tokens at most, to those whose turn it is.

        None goes past a checkpoint, or into an image that is not read yet.
        """
        pieces: dict[Request, int] = {}
        for request in chain.from_iterable(in_order(prompts)):
            length = request.state.length
            stops = [*request.checkpoints, self._room.next_division(request, active)]
            stop = min([stop for stop in stops if length < stop < request.target_length], default=request.target_length)
            if size := min(piece, request.images.reach(length, stop) - length):
                pieces[request] = size
                piece -= size
        if pieces:
            count_delays(pieces, [*prompts, *self._waiting.all])
        return [*pieces.items()]

    def _look_up(self) -> None:
        """Sees how much the cache has of the waiting requests; those that were cancelled never begin."""
        for request in self._waiting.all:
            if request.completion.done:
                self._waiting.discard(request)
            elif request.found < 0:
                known = self._known(request)
                request.found = 0 if known is None else known.length

    def _known(self, request: Request) -> Sequence | None:
        """What the cache has of its tokens."""
        return self._cache.peek(request.target, request.images.placed, needs_row=not request.completion.ids)

    def _try(self, request: Request, active: list[Request]) -> Found | Exception | None:
        """Starts a request; why it cannot, or None when there is no room."""
        try:
            found = self._start(request, active)
        except Exception as error:  # a request that fails, fails alone
            return error
        if found is None:
            self._refused.add(request)
        return found

    def _start(self, request: Request, active: list[Request]) -> Found | None:
        """Gives the request a sequence with what the cache has of its tokens; None when there is no room.

        One that is alone begins anyway: it may end before it needs all of its room.
        """
        state, target = self._steps.state, request.target
        if active and not self._room.fits(request, self._known(request), active):
            return None
        if not self._cache.make_room(1, 1) and active:
            return None
        found = self._cache.find(target, request.images.placed, needs_row=not request.completion.ids)
        request.sequence = sequence = found.sequence
        needed = state.room([sequence], [min(len(target) + state.limits.reach, self._model.context)])
        if not self._cache.make_room(*needed) and active:  # others than requests have it
            self._cache.insert(sequence, None, ends=True)
            self._steps.release(sequence)
            request.sequence = None
            return None
        sequence.images = request.images.placed
        request.found = request.kept = sequence.length
        if request.completion.started is None:
            request.completion.started = time.perf_counter()
            request.completion.reused = min(sequence.length, len(request.tokens))
        if found.parted is not None:
            request.checkpoints.add(found.parted)
        return found


def _round_seconds(request: Request) -> float:
    """How long its last rounds took, without pieces of prompts; 0 before the first one."""
    recent = [round.seconds for round in request.completion.rounds[-_RECENT:]]
    return statistics.median(recent) if recent else 0.0


def _awaits(request: Request) -> bool:
    """Whether a prompt is still being computed that begins like this one."""
    if request.awaited is None:
        return False
    other, common = request.awaited
    return other.sequence is not None and not other.decodes and other.state.length < common


def _shares(request: Request, other: Request) -> bool:
    """Whether the prompt begins like one that is being computed: then it waits for that, and takes it over."""
    common = common_prefix(request.target, other.target)
    if common - other.found < MIN_GAIN or other.state.length >= common:
        return False
    if common < other.target_length:  # the end of the other prompt is a checkpoint anyway
        other.checkpoints.add(min(common, request.target_length - 1))
    request.awaited, request.found = (other, common), common
    return True
