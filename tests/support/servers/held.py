"""A replica whose completions end when a test lets them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from trigraph.runtime.execution.prefill_speed import PrefillSpeed
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.scheduler.scheduler import Scheduler
from trigraph.runtime.server.cluster.deployment import EngineReplica
from trigraph.runtime.server.cluster.replica import Offer, Ticket, Update


class HeldReplica(EngineReplica):
    """`arguments` may have `hold` besides, a file: while it exists, no completion gets its last token."""

    def __init__(self, model: str, arguments: dict[str, Any]) -> None:
        arguments = dict(arguments)
        self._hold: Path | None = arguments.pop("hold", None)
        super().__init__(model, arguments)

    async def complete(self, ticket: Ticket) -> AsyncGenerator[Update, None]:
        async with aclosing(super().complete(ticket)) as updates:
            async for update in updates:
                last = update
                if update.finish_reason is not None and self._held():
                    yield update._replace(
                        tokens=update.tokens[:-1], rounds=[], sampled=update.sampled - 1, finish_reason=None
                    )
                    last = update._replace(tokens=update.tokens[-1:])
                    while self._held():
                        await asyncio.sleep(0.02)
                yield last

    def _held(self) -> bool:
        return self._hold is not None and self._hold.exists()


class GivingReplica(HeldReplica):
    """A replica with slow rounds, for which computing a state again seems to take for ever."""

    def __init__(self, model: str, arguments: dict[str, Any]) -> None:
        run = Scheduler.round

        def slowly(scheduler: Scheduler) -> bool:
            time.sleep(0.02)
            return run(scheduler)

        patch.object(Scheduler, "round", slowly).start()
        patch.object(PrefillSpeed, "seconds", return_value=1e9).start()
        super().__init__(model, arguments)


class RestlessReplica(EngineReplica):
    """A replica that offers each of its streams after so many tokens, `arguments["every"]`.

    With their state, as if it were slow to compute again, those with an even seed.
    """

    def __init__(self, model: str, arguments: dict[str, Any]) -> None:
        arguments = dict(arguments)
        self._every: int = arguments.pop("every")
        self._begun: WeakKeyDictionary[Handle, int] = WeakKeyDictionary()
        self._peeking = threading.Lock()
        super().__init__(model, arguments)
        self._drains = True

    def identify(self, roomy: bool = False) -> str:
        return self.fingerprint

    def _offer(self, request: Handle) -> Offer | None:
        if len(request.ids) < self._begun.setdefault(request, len(request.ids)) + self._every:
            return None
        seconds = 0.0 if (request.options.chosen_by.seed or 0) % 2 else 1e9
        with self._peeking, patch.object(PrefillSpeed, "seconds", return_value=seconds):
            return super()._offer(request)
