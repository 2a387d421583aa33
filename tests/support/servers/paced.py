"""A replica that computes nothing: each of its streams gets a token every so many seconds, all in the same round."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import Any

from support.servers.held import HeldReplica
from trigraph.runtime.engine.engine import Engine
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.options import Options
from trigraph.runtime.requests.stats import Round
from trigraph.runtime.server.cluster.replica import Offer


class Pacer:
    """The rounds, in a thread of their own."""

    def __init__(self, seconds: float) -> None:
        self.streams: set[PacedStream] = set()
        self._seconds = seconds
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            due = max(due + self._seconds, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            for stream in list(self.streams):
                stream.advance(self._seconds)


class PacedStream(Handle):
    """Says the prompt again and again."""

    def __init__(self, pacer: Pacer, engine: Engine, prompt: list[int], options: Options, completed: list[int]) -> None:
        super().__init__(prompt, options, engine.tokenizer, engine.context)
        self.runner = self
        self._pacer = pacer
        for token in completed:
            self.push(token)

    def enter(self, handle: Handle) -> None:
        self.started = self.created  # it never waits
        self._pacer.streams.add(self)

    def cancel(self, handle: Handle | None = None, reason: str | None = None) -> None:
        self.finish("cancelled")
        self._finished()

    def check_waiting(self) -> None:
        """Anybody may wait."""

    def advance(self, seconds: float) -> None:
        now = time.perf_counter()
        self.first_token = self.first_token or now
        token = self.prompt[len(self.ids) % len(self.prompt)]
        self.rounds.append(Round([token], 0, 0, 0.0, seconds, ended=now))
        if self.push(token):
            self._finished()
        self.notify()

    def _finished(self) -> None:
        self.end()
        self._pacer.streams.discard(self)


class PacedReplica(HeldReplica):
    """`arguments` has `seconds` besides, those of a round."""

    def __init__(self, model: str, arguments: dict[str, Any]) -> None:
        arguments = dict(arguments)
        pacer = Pacer(arguments.pop("seconds"))
        super().__init__(model, arguments)
        engine = self.engine

        def generate(
            prompt: list[int], options: Options, *, checkpoints: Collection[int], completed: list[int]
        ) -> PacedStream:
            return PacedStream(pacer, engine, prompt, options, completed)

        object.__setattr__(engine, "generate", generate)

    def _offer(self, request: object) -> Offer:
        return Offer(None)
