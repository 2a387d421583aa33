"""Continuous batching: each round decodes all running requests together, and computes a piece of waiting prompts."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import attrgetter

from trigraph.runtime.cache.prefix_cache import PrefixCache
from trigraph.runtime.device.memory import RetryError
from trigraph.runtime.drafting.choice import Governor
from trigraph.runtime.execution.device_executor import DeviceExecutor
from trigraph.runtime.execution.executor import Executor
from trigraph.runtime.execution.results import StepResult
from trigraph.runtime.requests.request import Request
from trigraph.runtime.sampling.guide import wait_for_any
from trigraph.runtime.scheduler.admission import Admission
from trigraph.runtime.scheduler.model import Model
from trigraph.runtime.scheduler.room import Room
from trigraph.runtime.scheduler.speculation import decode_round
from trigraph.runtime.scheduler.waiting import Waiting

_LATE = 0.01  # seconds that a round waits for constraints when it has nothing else to do


@dataclass
class Batch:
    """What one round computes: requests that decode, and prompts with how many of their tokens."""

    decoding: list[Request] = field(default_factory=list)
    prompts: list[tuple[Request, int]] = field(default_factory=list)


class Scheduler:
    """Runs rounds over the requests that `waiting` holds. For one thread, which holds `steps.lock`.

    See `in_order` for whose prompt comes next. When pages or slots run out, cached prefixes go first; then the request
    that costs least to compute again, to the same bits, leaves its state to the cache and waits.
    """

    def __init__(self, model: Model, waiting: Waiting) -> None:
        self.cache = PrefixCache(model.steps, model.disk)
        """The prefixes of earlier requests."""
        self.governor = Governor()
        """What decides how many tokens they draft."""
        self._model, self._steps, self._waiting = model, model.steps, waiting
        self._active: list[Request] = []  # those with state, the first to be served first
        self._ended: list[Request] = []  # which nobody was told of yet
        self._room = Room(model.steps)
        self._admission = Admission(model, waiting, self.cache, self._room)

    @cached_property
    def executor(self) -> Executor:
        """What runs the rounds of all requests."""
        steps = self._steps
        # A verify's tokens, and the drafts that it is of; the verify, a chain of drafts, and a block.
        most = 2 * steps.state.sequences * steps.max_pending
        sampler = self._model.device.sampler(most, steps.max_pending + 1, steps.vocab)
        return Executor(steps) if sampler is None else DeviceExecutor(steps, sampler)

    @property
    def active(self) -> tuple[Request, ...]:
        """The requests that hold state."""
        return tuple(self._active)

    def round(self) -> bool:
        """Brings all requests on: drafts, one verify, and a piece of a prompt. Whether any could be brought on."""
        try:
            batch = self._schedule()
            self._run(batch)
            self._postprocess()
        except Exception as error:  # a defect of ours, or no memory: nobody must wait for what will never come
            self.fail(error)
            return True
        return bool(batch.decoding or batch.prompts or self._ended)

    def cancel(self, request: Request, reason: str | None) -> None:
        """Ends a request as it is. Without a reason, what is there is no completion."""
        if request.completion.done:
            return
        error = None
        try:
            if reason is not None:
                request.completion.finish(reason)
        except Exception as failed:  # fails alone
            error = failed
        self.end(request, error)

    def fail(self, error: Exception) -> None:
        """Ends all requests with an error."""
        for request in [*self._active, *self._waiting.all]:
            self.end(request, error)

    def end(self, request: Request, error: BaseException | None = None) -> None:
        """Takes the state of a request, which leaves what it has computed to the cache, and no other one waits for."""
        if request in self._active:
            self._active.remove(request)
        self._waiting.discard(request)
        self._admission.retry()
        if request.completion.done:
            return
        try:
            if request.sequence is not None:
                self._close(request)
        except Exception as failed:  # of its file, or of a step
            error = error or failed
        finally:
            request.completion.end(error)
            self._ended.append(request)

    def take_news(self) -> list[Request]:
        """Requests that have come on or ended since the last call."""
        news, self._ended = [*self._ended, *self._active], []
        return news

    def _schedule(self) -> Batch:
        """Chooses what the next round computes, and sees to it that there is room for that."""
        now = time.monotonic()
        for request in [*self._active, *self._waiting.all]:
            if request.deadline is not None and request.deadline <= now:
                self.cancel(request, "timeout")
        wanted = bool(self._waiting) or not all(request.decodes for request in self._active)
        piece = self._admission.piece(self._active) if wanted else 0
        if not self._suspects():
            for request, found in self._admission.admit(self._active, piece):
                if isinstance(found, Exception):  # of a file in the cache, say
                    self.end(request, found)
                    continue
                insort(self._active, request, key=attrgetter("rank"))
                if request.state.length == request.target_length:
                    self._attempt([(request, 0)], partial(self._arrived, request, found.row, 0))
        chosen = self._suspects() or self._active
        decoding = [request for request in chosen if request.decodes and not request.completion.finished]
        prompts = [request for request in chosen if not request.decodes]
        if not prompts and not any(request.sampler.ready for request in decoding):
            wait_for_any([request.sampler.guide for request in decoding if request.sampler.guide], _LATE)
        decoding = [request for request in decoding if request.sampler.ready]
        return self._fitting(Batch(decoding, self._admission.cut(self._active, prompts, piece)))

    def _suspects(self) -> list[Request]:
        """A request that decodes alone, if there is one."""
        return [request for request in self._active if request.suspect_until >= 0][:1]

    def _run(self, batch: Batch) -> None:
        if batch.decoding:
            sizes = [(request, self._steps.state.limits.reach) for request in batch.decoding]
            self._attempt(sizes, lambda: decode_round(self.executor, batch.decoding, self.governor))
        if batch.prompts:
            self._attempt(batch.prompts, partial(self._prefill, batch.prompts))

    def _prefill(self, prompts: list[tuple[Request, int]]) -> None:
        sequences = [request.state for request, _ in prompts]
        pieces = [
            request.target[sequence.length : sequence.length + size]
            for (request, size), sequence in zip(prompts, sequences, strict=True)
        ]
        images = [
            request.images.rows(sequence.length, sequence.length + size)
            for (request, size), sequence in zip(prompts, sequences, strict=True)
        ]
        started = time.perf_counter()
        rows = self._steps.prefill(sequences, pieces, images)
        self._model.prefill_speed.observe(sum(map(len, pieces)), time.perf_counter() - started)
        for row, (request, _) in enumerate(prompts):
            self._arrived(request, rows, row)

    def _postprocess(self) -> None:
        """Ends the requests that are complete or have failed."""
        for request in self.active:
            if request.state.length >= request.suspect_until:
                request.suspect_until = -1
            if self._room.divides(request, self._active):
                request.kept = request.state.length
                self.cache.insert(request.state, None, lasting=False)
            complete = request.completion.finished and request.state.length >= request.target_length
            if complete or request.error is not None:
                self.end(request, request.error)

    def _fitting(self, batch: Batch) -> Batch:
        """The batch without those who had to give their state back, so that there is room for the others."""
        context = self._model.context
        while True:
            sizes = [(request, self._steps.state.limits.reach) for request in batch.decoding] + batch.prompts
            sequences = [request.state for request, _ in sizes]
            lengths = [min(request.state.length + size, context) for request, size in sizes]
            if not sizes or self.cache.make_room(*self._steps.state.room(sequences, lengths)):
                return batch
            victim = self._room.victim(self._active)
            if len(self._active) > 1:
                self.cache.insert(victim.state, None, ends=True)
                self._preempt(victim)
            else:
                # Fails it, with the numbers.
                self._attempt(sizes, partial(self._steps.state.check_room, sequences, lengths))
            batch.decoding = [request for request in batch.decoding if request is not victim]
            batch.prompts = [(request, size) for request, size in batch.prompts if request is not victim]

    def _preempt(self, request: Request) -> None:
        """Takes the state of a request, which will be computed again."""
        self._active.remove(request)
        request.lost += request.state.length - request.found
        self._steps.release(request.state)
        request.sequence, request.decodes, request.found = None, False, -1
        request.completion.preemptions += 1
        self._admission.retry()
        self._waiting.add(request)

    def _arrived(self, request: Request, rows: StepResult | None, row: int) -> None:
        """Keeps the state of the request where that is worth it; at the end of the prompt, its decoding begins."""
        sequence, begun = request.state, request.completion.first_token is not None
        ready = sequence.length == request.target_length
        if ready:
            request.images.forget()
        whole = ready and not begun
        if rows is not None and (whole or sequence.length in request.checkpoints):
            rows = StepResult(rows.logits[row : row + 1], rows.tokens[row : row + 1], rows.hidden[row : row + 1])
            self.cache.insert(sequence, rows if whole else None)
        if ready and begun:
            request.decodes = True
        elif whole and not request.completion.finished:
            self._begin(request, rows)

    def _begin(self, request: Request, rows: StepResult | None) -> None:
        """Samples the first token, unless it is known."""
        completion = request.completion
        try:
            if completion.ids:
                request.token = completion.ids[-1]
            else:
                assert rows is not None  # the cache gives no whole prompt without
                request.token = request.sampler.pick(rows, 0, request.state.length)
                completion.push(request.token)
        except Exception as error:  # a request that fails, fails alone
            self.end(request, error)
            return
        completion.first_token, request.decodes = time.perf_counter(), True

    def _close(self, request: Request) -> None:
        sequence, request.sequence, request.decodes = request.state, None, False
        try:
            if not sequence.damaged and sequence.length:
                self.cache.insert(sequence, None, ends=True)
                if request.finish is not None:
                    request.finish([*request.tokens, *request.completion.ids])
        finally:
            self._steps.release(sequence)
            # Each of as many requests, and of one more, may move twice: at its start and at the end of its prompt.
            self._steps.state.slots_ahead.prepare(2 * (len(self._active) + 2))

    def _attempt(self, sizes: list[tuple[Request, int]], step: Callable[[], object]) -> None:
        """Runs a step. When it fails, a request that was alone in it fails; several are computed again, each alone.

        So is a single one where the step may be tried again.
        """
        reached = [request.state.length + size for request, size in sizes]
        try:
            step()
        except Exception as error:
            if len(sizes) == 1 and not isinstance(error, RetryError):
                self.end(sizes[0][0], error)
                return
            for (request, _), length in zip(sizes, reached, strict=True):
                if not request.completion.done:
                    request.suspect_until = length
                    self._preempt(request)
