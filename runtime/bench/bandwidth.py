"""Read bandwidth, measured between the timed steps: it varies when others share the machine."""

from collections.abc import Callable

from trigraph.runtime.device.read_rate import memory_reader


class Bandwidth:
    """The read bandwidth of a run, pass by pass."""

    def __init__(self, read: Callable[[], float]) -> None:
        """`read` does one pass and returns its GB/s."""
        self._read = read
        self.passes: list[float] = []
        """GB/s of each pass so far."""

    def measure(self) -> float:
        """GB/s of one more pass."""
        self.passes.append(self._read())
        return self.passes[-1]


def memory_bandwidth(threads: int) -> Bandwidth:
    """The bandwidth of `threads` threads together."""
    read = memory_reader(threads)
    return Bandwidth(lambda: read() / 1e9)
