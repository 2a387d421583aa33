"""What the KV pages let requests do: who begins beside others, who gives way, and what is kept for that."""

from __future__ import annotations

from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.requests.request import Request
from trigraph.runtime.state.sequence import Sequence

# Parts of all pages: what a request grows by at the least, and what is in use before checkpoints divide it.
_GROWTH, _CROWDED = 1 / 32, 1 / 8


class Room:
    """Sees to it that giving way costs little, and stays rare.

    How long a completion becomes is not known. It is expected to grow by as much again as it has, up to its limit. A
    request begins, or comes back, where there is room for its prompt and for that growth of all, or at least for as
    many tokens as it would lose. While pages are scarce, checkpoints divide what requests have computed, so that one
    that gives way loses little more than the pages that others take.
    """

    def __init__(self, steps: Steps) -> None:
        self._state = state = steps.state
        spare = max(1, state.slots.size - state.sequences)
        self._spacing = state.limits.page_size * max(1, 2 * state.pages.size // spare)  # takes half of these slots

    def fits(self, request: Request, known: Sequence | None, active: list[Request]) -> bool:
        """Whether a request may begin beside the `active` ones; `known`: what the cache has of its tokens."""
        state, everybody = self._state, [*active, request]
        sequences = [known if each is request else each.sequence for each in everybody]
        pages = {page for each in sequences if each is not None for page in each.pages[: each.page_count].tolist()}
        free = state.pages.size - len(pages)
        for each, sequence in zip(everybody, sequences, strict=True):
            length = min(each.target_length + state.limits.reach, state.limits.context)
            free -= max(0, state.pages_of(length) - (0 if sequence is None else sequence.page_count))
        growth = sum(self._growth(each) for each in everybody)
        return free >= state.pages_of(min(growth, request.target_length))

    def victim(self, active: list[Request]) -> Request:
        """Who gives its state back: of the lowest priority, the one that has lost least when all of it is lost."""
        lowest = active[-1].rank[0]
        return min(
            [request for request in reversed(active) if request.rank[0] == lowest],
            key=lambda request: request.lost + request.state.length - request.found,
        )

    def divides(self, request: Request, active: list[Request]) -> bool:
        """Whether to keep a checkpoint of what it has computed so far: at full pages only, which need no copy."""
        length = request.state.length
        return not length % self._state.limits.page_size and length >= self.next_division(request, active)

    def next_division(self, request: Request, active: list[Request]) -> int:
        """The length at which the next such checkpoint is due; beyond the context while pages abound."""
        limits, used = self._state.limits, sum(each.state.page_count for each in active)
        if used < _CROWDED * self._state.pages.size:
            return limits.context + 1
        return request.kept // limits.page_size * limits.page_size + self._spacing

    def _growth(self, request: Request) -> int:
        """The tokens by which a request is expected to grow."""
        least = int(_GROWTH * self._state.pages.size * self._state.limits.page_size)
        return min(request.completion.left, max(len(request.completion.ids), least))
