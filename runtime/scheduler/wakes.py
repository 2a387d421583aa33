"""Wakes the readers of requests that have come on, while a device computes the next round."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from trigraph.runtime.device.device import Device
from trigraph.runtime.scheduler.request import Request


class Wakes:
    """Requests whose readers are to be woken.

    These compete with the engine's thread for Python's lock. So on a device that computes by itself they are woken when
    the next round has been enqueued, and the device does not wait for what they do.
    """

    def __init__(self, device: Device) -> None:
        self._requests: deque[Request] = deque()
        self._late = device.while_waiting(self.wake)

    def add(self, requests: Iterable[Request], *, more: bool) -> None:
        """Has these woken soon. `more`: a round is to follow."""
        self._requests.extend(requests)
        if not (self._late and more):
            self.wake()

    def wake(self) -> None:
        """Wakes all of them. Any thread may call it."""
        with suppress(IndexError):
            while self._requests:
                self._requests.popleft().wake()
