"""A machine that nobody has, to calculate with."""

from trigraph.runtime.bench.machine import Machine

MACHINE = Machine("a processor", 2, 1, "portable", 0.5, float32_gmac_s=40.0, int8_gmac_s=80.0)
