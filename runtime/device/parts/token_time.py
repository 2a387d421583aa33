"""What a token's reads should take at the measured speeds of the memories that they are from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.device import Device
from trigraph.runtime.device.parts.placement import Placement
from trigraph.runtime.device.read_rate import memory_reader

_LEAST = 100 << 20  # bytes of a token that are worth a measurement, which takes a quarter of a second
_PASSES = 3  # the best of which counts


def token_time(placement: Placement, gpus: Sequence[Device], threads: int) -> str:
    """To be said behind a placement's sentence: "" for few bytes, and where nothing can be measured.

    `gpus`: in the placement's order; none where they are not in this machine, of which the host alone is measured then.
    """
    host, device = placement.host_bytes_per_token, sum(gpu.device_bytes_per_token for gpu in placement.gpus)
    if host + device < _LEAST or not (gpus or host):
        return ""
    read = memory_reader(threads) if host else lambda: math.inf
    host_rate = max(read() for _ in range(_PASSES))
    speeds = [f"{host_rate / 1e9:,.0f} GB/s of the host's"] if host else []
    if not gpus:
        return f"; the host's take {1e3 * host / host_rate:,.0f} ms at the {host_rate / 1e9:,.0f} GB/s of this machine"
    rates: dict[str, float] = {}
    with suppress(TrigraphError):  # no memory left for that
        for gpu in gpus:
            if gpu.label not in rates and (rate := gpu.copy_rate()) is not None:
                rates[gpu.label] = rate
    if any(gpu.label not in rates for gpu in gpus):
        return ""
    seconds = placement.seconds([rates[gpu.label] for gpu in gpus], host_rate)
    speeds += [f"{rate / 1e9:,.0f} GB/s of {label}'s" for label, rate in rates.items()]
    return f", which should take {1e3 * seconds:,.1f} ms at the measured {', '.join(speeds)} memory"
