"""Sends completions where the state of their beginning is."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from trigraph.runtime.server.cluster.replica import Ticket

_BLOCK = 32  # tokens
_MOST_BLOCKS = 1 << 18  # that a router remembers: of eight million tokens


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Ray Serve's router to the replica that last got the longest beginning of a prompt, unless it is much busier.

    Without such a replica, the one with the fewest requests. Each front has a router, which remembers what it has sent.
    `slack`: how many requests more than the least busy one a replica may have.
    """

    def initialize_state(self, slack: int = 4) -> None:
        """Takes the deployment's settings of the router, once it is made."""
        self._slack = slack
        self._places: OrderedDict[int, ReplicaID] = OrderedDict()  # by the hash of all tokens up to the end of a block

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Returns groups of replicas for a request, the preferred group first."""
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        ticket = _ticket(pending_request)
        if ticket is None:
            return [candidate_replicas]
        # Some of those that were lost may still be listed; and while a new version is rolled out, there are two.
        left = [each for each in candidate_replicas if each.replica_id.unique_id not in ticket.lost]
        left = left or [*candidate_replicas]
        candidates = [each for each in left if _fits(each, ticket)] or left
        random.shuffle(candidates)  # else all that come at once, before their loads are known, go to the first
        place = self._place(ticket)
        near = [each for each in candidates if each.replica_id == place]
        if near and self._requests(near[0]) <= self._slack + min(map(self._requests, candidates)):
            return [near, candidates]
        return [candidates]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Remembers which replica has taken the beginning of a prompt."""
        ticket = _ticket(pending_request)
        for key in () if ticket is None else _keys(ticket):
            self._places[key] = replica_id
            self._places.move_to_end(key)
        while len(self._places) > _MOST_BLOCKS:
            self._places.popitem(last=False)

    def _place(self, ticket: Ticket) -> ReplicaID | None:
        """The replica that got the longest beginning of the ticket's tokens."""
        place = None
        for key in _keys(ticket):
            if key not in self._places:
                break
            place = self._places[key]
        return place

    def _requests(self, replica: RunningReplica) -> int:
        return self.replica_queue_len_cache.get(replica.replica_id) or 0


def _ticket(request: PendingRequest) -> Ticket | None:
    return request.args[0] if request.args and isinstance(request.args[0], Ticket) else None


def _keys(ticket: Ticket) -> Iterator[int]:
    """A hash for each whole block of the tokens, and all those before it."""
    prompt = ticket.prompt if ticket.images is None else ticket.images.keys(ticket.prompt)
    tokens, key = [*prompt, *ticket.completed], 0
    for end in range(_BLOCK, len(tokens) + 1, _BLOCK):
        key = hash((key, *tokens[end - _BLOCK : end]))
        yield key


def _fits(replica: RunningReplica, ticket: Ticket) -> bool:
    """Whether the replica can begin the completion, or go on with it."""
    known = replica.replica_metadata
    same = ticket.fingerprint in (None, known.get("fingerprint"))
    return same and known.get("weights") == ticket.weights
