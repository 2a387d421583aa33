"""How weights went to the fake GPU in a step: batches of copies on a stream of their own, and what they waited for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_BUFFERS = 3

_COPY = re.compile(r"copy pinned device (\d+) on (\d+)")
_HOLD = re.compile(r"hold stream for (\d+) on (\d+)")
_RECORD = re.compile(r"record (\d+) on (\d+)")
_WAIT = re.compile(r"wait event on (\d+)")
_LAUNCH = re.compile(r"launch .* on (\d+)")


@dataclass
class Batch:
    """Copies to one buffer."""

    after: int | None
    """The batch of this step whose products it waits for; None for those of an earlier step, or for none."""
    known_done: int = -1
    """The last batch whose products are done when this one is enqueued, as far as the host has waited for it."""
    nbytes: int = 0


def batches_of(events: Sequence[str]) -> list[Batch]:
    """The batches of a step, by its events with their streams."""
    products = next(match[1] for event in events if (match := _LAUNCH.match(event)))
    found: list[Batch] = []
    read: dict[str, int] = {}  # by event of the products, the batch that they read before
    copied: dict[str, int] = {}  # by event of the copies, the last batch before
    reading, done, ended = -1, -1, True
    after: int | None = None
    for event in events:
        if match := _HOLD.match(event):
            if match[2] == products:
                reading, ended = copied.get(match[1], reading), True
            else:
                after = read.get(match[1])
        elif match := _RECORD.match(event):
            if match[2] == products:
                read[match[1]] = reading
            else:
                copied[match[1]] = len(found) - 1
        elif match := _WAIT.match(event):
            known = found[: copied.get(match[1], -1) + 1]
            done = max([done, *(batch.after for batch in known if batch.after is not None)])
        elif (match := _COPY.match(event)) and match[2] != products:
            if ended:
                found.append(Batch(after, done))
                after, ended = None, False
            found[-1].nbytes += int(match[1])
            found[-1].known_done = done
    return found


def check_waits(batches: Sequence[Batch]) -> None:
    """A batch waits for the products that read its buffer before, and the host for none of the batch ahead."""
    assert [batch.after for batch in batches] == [*[None] * _BUFFERS, *range(len(batches))][: len(batches)]
    assert all(batch.known_done < max(number - 1, 0) for number, batch in enumerate(batches))
