"""Continuous batching: each round decodes all running requests together, and computes a piece of waiting prompts."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.prefix import common_prefix
from trigraph.runtime.decoding.running import Running
from trigraph.runtime.decoding.speculation import decode_round
from trigraph.runtime.execution.steps import StepResult
from trigraph.runtime.model import Model
from trigraph.runtime.scheduler.request import Request
from trigraph.runtime.scheduler.waiting import Waiting

_WORTH = 16  # tokens that a checkpoint must save


@dataclass
class Batch:
    """What one round computes: requests that decode, and prompts with how many of their tokens."""

    decoding: list[Request] = field(default_factory=list)
    prompts: list[tuple[Request, int]] = field(default_factory=list)


class Scheduler:
    """Runs rounds over the requests that `waiting` holds. One thread at a time, which holds `steps.lock`.

    First come, first served within a priority. When pages or slots run out, cached prefixes go first; then the
    youngest request gives its state back and waits to be computed again, to the same bits.
    """

    def __init__(self, model: Model, waiting: Waiting) -> None:
        self._model, self._steps, self._cache = model, model.steps, model.cache
        self._waiting = waiting
        self._active: list[Request] = []  # those with state, the first to be served first
        self._blocked = False  # whether the next one has to wait until another one gives its state back

    @property
    def active(self) -> tuple[Request, ...]:
        """The requests that hold state."""
        return tuple(self._active)

    def round(self) -> None:
        """Brings all requests on: drafts, one verify, and a piece of a prompt."""
        try:
            batch = self._schedule()
            self._run(batch)
            self._postprocess()
        except Exception as error:  # a defect of ours, or no memory: nobody must wait for what will never come
            for request in self.active or [self._waiting.first]:
                if request is not None:
                    self.end(request, error)

    def end(self, request: Request, error: BaseException | None = None) -> None:
        """Takes the state of a request, which leaves what it has computed to the cache, and no other one waits for."""
        if request in self._active:
            self._active.remove(request)
        self._waiting.discard(request)
        if request.done:
            return
        request.error = error
        if request.sequence is not None:
            self._close(request)
        request.done = True
        request.notify()

    def _schedule(self) -> Batch:
        """Chooses what the next round computes, and sees to it that there is room for that."""
        for request, reason in self._waiting.ended():
            request.transcript.cancel(reason)
            self.end(request)
        piece = self._piece([request for request in self._active if _decodes(request)])
        if not self._suspects():
            self._admit(piece)
        chosen = self._suspects() or self._active
        decoding = [request for request in chosen if _decodes(request)]
        prompts = [request for request in chosen if not _decodes(request)]
        return self._fitting(Batch(decoding, self._cut(prompts, piece)))

    def _suspects(self) -> list[Request]:
        """A request that decodes alone, if there is one."""
        return [request for request in self._active if request.suspect_until >= 0][:1]

    def _run(self, batch: Batch) -> None:
        if batch.decoding:
            sizes = [(request, self._steps.max_pending) for request in batch.decoding]
            self._attempt(sizes, lambda: self._decode(batch.decoding))
        if batch.prompts:
            self._attempt(batch.prompts, lambda: self._prefill(batch.prompts))

    def _decode(self, decoding: list[Request]) -> None:
        running = [_running(request) for request in decoding]
        decode_round(self._steps, running, self._model.drafter, self._model.governor)

    def _prefill(self, prompts: list[tuple[Request, int]]) -> None:
        sequences = [request.state for request, _ in prompts]
        pieces = [
            request.target[sequence.length : sequence.length + size]
            for (request, size), sequence in zip(prompts, sequences, strict=True)
        ]
        started = time.perf_counter()
        rows = self._steps.prefill(sequences, pieces)
        self._model.costs.observe_prefill(sum(map(len, pieces)), time.perf_counter() - started)
        for row, (request, _) in enumerate(prompts):
            self._arrived(request, rows, row)

    def _postprocess(self) -> None:
        """Ends the requests that are complete or have failed."""
        for request in self.active:
            if request.state.length >= request.suspect_until:
                request.suspect_until = -1
            failed = None if request.running is None else request.running.error
            if failed is not None or (request.transcript.finished and request.state.length >= request.target_length):
                self.end(request, failed)
            request.notify()

    # Admission.

    def _admit(self, piece: int) -> None:
        """Starts waiting requests while a round of `piece` tokens of prompts has room for them."""
        limit = self._steps.state.sequences
        while (request := self._waiting.first) is not None and len(self._active) < limit:
            prompts = [other for other in self._active if not _decodes(other)]
            if sum(other.target_length - other.state.length for other in prompts) >= piece:
                return
            if any(self._shares(request, other) for other in prompts) or not self._start(request):
                return
            self._waiting.discard(request)
            if not request.done:
                insort(self._active, request, key=lambda active: active.rank)

    def _shares(self, request: Request, other: Request) -> bool:
        """Whether the prompt begins like one that is being computed: then it waits for that, and takes it over."""
        common = common_prefix(request.target, other.target)
        if common - other.state.length < _WORTH:
            return False
        if common < other.target_length:  # the end of the other prompt is a checkpoint anyway
            other.checkpoints.add(min(common, request.target_length - 1))
        return True

    def _start(self, request: Request) -> bool:
        """Gives the request a sequence that holds what the cache has of its tokens; false when there is no room."""
        state, target = self._steps.state, request.target
        if self._blocked or not self._cache.make_room(1, 1):
            return False
        found = self._cache.find(target)
        needed = state.room([found.sequence], [min(len(target) + self._steps.max_pending, self._model.context)])
        if not self._cache.make_room(*needed) and self._active:
            self._steps.release(found.sequence)
            self._blocked = True
            return False
        request.sequence = found.sequence
        if request.started is None:
            request.started, request.reused = time.perf_counter(), found.sequence.length
        if found.parted is not None and found.parted - found.sequence.length >= _WORTH:
            request.checkpoints.add(found.parted)
        if found.sequence.length == len(target):
            self._arrived(request, found.row, 0)
        return True

    def _piece(self, decoding: list[Request]) -> int:
        """How many tokens of prompts a round may compute without those that decode waiting too long for it."""
        if not decoding:
            return self._steps.chunk
        milliseconds = self._model.scheduling.prefill_ms
        if milliseconds is not None:
            seconds = milliseconds / 1000
        else:  # as long as the decoding itself takes
            seconds = max(request.rounds[-1].seconds if request.rounds else 0.0 for request in decoding)
        return min(max(1, self._model.costs.prefill_tokens(seconds)), self._steps.chunk)

    def _cut(self, prompts: list[Request], piece: int) -> list[tuple[Request, int]]:
        """The next pieces of the prompts, in order, `piece` tokens at most; none goes past a checkpoint."""
        pieces = []
        for request in prompts:
            length = request.state.length
            stop = min([stop for stop in request.checkpoints if stop > length], default=request.target_length)
            if size := min(piece, stop - length):
                pieces.append((request, size))
                piece -= size
        return pieces

    # Room, and what becomes of state.

    def _fitting(self, batch: Batch) -> Batch:
        """The batch without those who had to give their state back, so that there is room for the others."""
        context = self._model.context
        while True:
            sizes = [(request, self._steps.max_pending) for request in batch.decoding] + batch.prompts
            sequences = [request.state for request, _ in sizes]
            lengths = [min(request.state.length + size, context) for request, size in sizes]
            if not sizes or self._cache.make_room(*self._steps.state.room(sequences, lengths)):
                return batch
            victim = self._active[-1]
            if len(self._active) == 1:
                self.end(victim, TrigraphError("there is no room for one request; load with more kv_memory"))
            else:
                self._preempt(victim)
            batch.decoding = [request for request in batch.decoding if request is not victim]
            batch.prompts = [(request, size) for request, size in batch.prompts if request is not victim]

    def _preempt(self, request: Request) -> None:
        """Takes the state of a request, which will be computed again."""
        self._active.remove(request)
        self._steps.release(request.state)
        request.sequence = None
        request.preemptions += 1
        self._blocked = False
        self._waiting.add(request)

    def _arrived(self, request: Request, rows: StepResult | None, row: int) -> None:
        """Keeps the state of the request where that is worth it; at the end of the prompt, its decoding begins."""
        sequence = request.state
        ready = sequence.length == request.target_length
        whole = ready and request.running is None
        if rows is not None and (whole or sequence.length in request.checkpoints):
            rows = StepResult(rows.logits[row : row + 1], rows.tokens[row : row + 1], rows.hidden[row : row + 1])
            self._cache.insert(sequence, rows if whole else None)
        if ready and request.running is not None:
            request.running.sequence = sequence
        elif whole and rows is not None and not request.transcript.finished:
            self._begin(request, rows)

    def _begin(self, request: Request, rows: StepResult) -> None:
        """Samples the first token."""
        sequence = request.state
        try:
            token = request.sampler.pick(rows, 0, sequence.length)
            request.transcript.push(token)
        except Exception as error:  # a request that fails, fails alone
            self.end(request, error)
            return
        request.first_token = time.perf_counter()
        p_min = request.options.draft_p_min or 0.0
        request.running = Running(
            sequence, token, request.sampler, request.transcript, request.draft_length, p_min, request.rounds
        )

    def _close(self, request: Request) -> None:
        sequence, request.sequence = request.state, None
        try:
            if not sequence.damaged and sequence.length:
                self._cache.insert(sequence, None)
                if request.finish is not None:
                    request.finish(request)
        except TrigraphError as error:
            request.error = request.error or error
        finally:
            self._steps.release(sequence)
            self._blocked = False

    def _attempt(self, sizes: list[tuple[Request, int]], step: Callable[[], None]) -> None:
        """Runs a step. When it fails, a request that was alone in it fails; several are computed again, each alone."""
        reached = [request.state.length + size for request, size in sizes]
        try:
            step()
        except Exception as error:
            if len(sizes) == 1:
                self.end(sizes[0][0], error)
                return
            for (request, _), length in zip(sizes, reached, strict=True):
                request.suspect_until = length
                self._preempt(request)


def _decodes(request: Request) -> bool:
    return request.running is not None and request.running.sequence is request.sequence


def _running(request: Request) -> Running:
    assert request.running is not None
    return request.running
