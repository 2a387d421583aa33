"""Ctrl-C after a time."""

import signal


class Interrupts:
    """Sends this process a SIGINT after some time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        def interrupt(number: int, frame: object) -> None:
            signal.raise_signal(signal.SIGINT)

        self._previous = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *details: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._previous)
