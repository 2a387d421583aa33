"""What the machine can do: multiply rates, read bandwidth, and the load that others put on it."""

import ctypes
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trigraph.custom_ops import instruction_set, library_path
from trigraph.custom_ops.cost import Cost

PROBE_ROUNDS = 1_000_000


@dataclass(frozen=True)
class Machine:
    """The machine of a run. Rates are those of `threads` threads together; 0: not measured."""

    processor: str
    cores: int
    threads: int
    instruction_set: str
    load: float  # 1-minute load average before the run
    float32_gmac_s: float = 0
    int8_gmac_s: float = 0
    read_gb_s: float = 0  # median of the passes of the run
    min_read_gb_s: float = 0
    max_read_gb_s: float = 0

    def with_passes(self, passes: Sequence[float]) -> "Machine":
        """The machine with the read bandwidths, in GB/s, that were measured during the run."""
        return replace(self, read_gb_s=statistics.median(passes), min_read_gb_s=min(passes), max_read_gb_s=max(passes))

    def floor_ms(self, cost: Cost, read_gb_s: float) -> float:
        """The roofline in milliseconds: the larger of the time to read and the time to multiply."""
        read = cost.bytes / (read_gb_s * 1e9)
        if not self.float32_gmac_s:
            return 1e3 * read
        multiply = cost.float32_products / (self.float32_gmac_s * 1e9) + cost.int8_products / (self.int8_gmac_s * 1e9)
        return 1e3 * max(read, multiply)


class Bandwidth:
    """The read bandwidth of a run, measured between the timed steps: it varies when others share the machine."""

    def __init__(self, read: Callable[[], float]) -> None:
        """`read` does one pass and returns its bytes a second."""
        self._read = read
        self.passes: list[float] = []
        """GB/s of each pass so far."""

    def measure(self) -> float:
        """GB/s of one more pass."""
        self.passes.append(self._read() / 1e9)
        return self.passes[-1]


def _seconds(work: Callable[[int], object], threads: int) -> float:
    """Wall time of work(0..threads-1), each on its own thread; ctypes calls release the interpreter lock."""
    pool = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    start = time.perf_counter()
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    return time.perf_counter() - start


def processor() -> str:
    """What the operating system calls the processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def measure_machine(threads: int, repetitions: int = 200) -> Machine:
    """Measures the multiply rates, in about a second; the best repetition counts."""
    library = ctypes.CDLL(str(library_path("cpu")))
    library.trigraph_probe_products.argtypes = [ctypes.c_int, ctypes.c_int64]
    library.trigraph_probe_products.restype = ctypes.c_int64
    load = os.getloadavg()[0]

    def products_per_second(int8: bool) -> float:
        products = [0] * threads

        def multiply(index: int) -> None:
            products[index] = library.trigraph_probe_products(int8, PROBE_ROUNDS)

        seconds = min(_seconds(multiply, threads) for _ in range(repetitions))
        return sum(products) / seconds

    return Machine(
        processor=processor(),
        cores=os.cpu_count() or 1,
        threads=threads,
        instruction_set=instruction_set(),
        load=load,
        float32_gmac_s=products_per_second(False) / 1e9,
        int8_gmac_s=products_per_second(True) / 1e9,
    )


def gpu_machine() -> Machine:
    """A GPU: the bandwidth of copies in its memory is its roofline."""
    return Machine("GPU", os.cpu_count() or 1, threads=1, instruction_set="CUDA", load=os.getloadavg()[0])
