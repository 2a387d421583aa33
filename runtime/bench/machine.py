"""What the machine can do: load, read bandwidth and multiply rate, measured in the run that they divide."""

import ctypes
import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trigraph.custom_ops import instruction_set, library_path
from trigraph.runtime.cuda_library import CudaLibrary

PROBE_BYTES = 1 << 29  # far beyond any cache, so that the probe reads memory
PROBE_ROUNDS = 4_000_000


@dataclass(frozen=True)
class Machine:
    """The machine of a run. Rates are those of `threads` threads together; 0 stands for one that was not measured."""

    processor: str
    cores: int
    threads: int
    instruction_set: str
    load: float  # 1-minute load average before the run
    read_gb_s: float
    float32_gmac_s: float
    int8_gmac_s: float

    def floor_ms(self, read_bytes: float, float32_products: float, int8_products: float) -> float:
        """The roofline: the larger of the time to read the bytes and the time to multiply, in milliseconds."""
        read = read_bytes / (self.read_gb_s * 1e9)
        if not self.float32_gmac_s:
            return 1e3 * read
        multiply = float32_products / (self.float32_gmac_s * 1e9) + int8_products / (self.int8_gmac_s * 1e9)
        return 1e3 * max(read, multiply)


def _seconds(work: Callable[[int], object], threads: int) -> float:
    """Wall time of work(0..threads-1), each on its own thread; ctypes calls release the interpreter lock."""
    pool = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    start = time.perf_counter()
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    return time.perf_counter() - start


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def measure_machine(threads: int, repetitions: int = 5) -> Machine:
    """Measures bandwidth and multiply rates; takes about a second. The best of the repetitions counts."""
    library = ctypes.CDLL(str(library_path("cpu")))
    library.trigraph_probe_read.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.trigraph_probe_read.restype = ctypes.c_uint64
    library.trigraph_probe_products.argtypes = [ctypes.c_int, ctypes.c_int64]
    library.trigraph_probe_products.restype = ctypes.c_int64
    load = os.getloadavg()[0]
    words = np.ones(PROBE_BYTES // 8, np.uint64)
    share = len(words) // threads

    def read(index: int) -> None:
        library.trigraph_probe_read(words.ctypes.data + 8 * share * index, share)

    read_seconds = min(_seconds(read, threads) for _ in range(repetitions))

    def products_per_second(int8: bool) -> float:
        products = [0] * threads

        def multiply(index: int) -> None:
            products[index] = library.trigraph_probe_products(int8, PROBE_ROUNDS)

        seconds = min(_seconds(multiply, threads) for _ in range(repetitions))
        return sum(products) / seconds

    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        threads=threads,
        instruction_set=instruction_set(),
        load=load,
        read_gb_s=8 * share * threads / read_seconds / 1e9,
        float32_gmac_s=products_per_second(False) / 1e9,
        int8_gmac_s=products_per_second(True) / 1e9,
    )


def measure_gpu(library: CudaLibrary) -> Machine:
    """A GPU: the bandwidth of copies on it is its roofline."""
    return Machine(
        processor="GPU",
        cores=os.cpu_count() or 1,
        threads=1,
        instruction_set="CUDA",
        load=os.getloadavg()[0],
        read_gb_s=library.copy_rate() / 1e9,
        float32_gmac_s=0,
        int8_gmac_s=0,
    )
