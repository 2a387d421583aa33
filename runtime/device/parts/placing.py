"""Which weights GPUs hold within their budgets, and which layers and routed experts stay in the host's memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.parts.placement import GpuShare, Placement
from trigraph.runtime.device.parts.weights import ExpertLayer, Weights

WORKING_BYTES = 1 << 30
"""The part of a budget for CUDA itself, and for what steps need beside weights and state."""

_PIECES = ((4096, 3 << 28), (2048, 1 << 28))
"""Tokens of prompts in a step, and bytes that it needs beyond `WORKING_BYTES`, as counted for the 35B-A3B.

Each step of a long prompt copies the host's experts to the GPU, so longer ones copy less; and more tokens of an expert
fill its tiles better."""
_PIECE_SHARE = 8  # of the room for experts, at most an eighth goes to longer pieces where some are the host's


def place(
    weights: Weights,
    budgets: Sequence[int],
    working_bytes: int = WORKING_BYTES,
    *,
    given: bool = True,
    experts: bool = True,
    split: Sequence[float] = (),
    speeds: Sequence[float] = (),
) -> Placement:
    """What GPUs hold that may take `budgets` bytes: trunk and state, the MTP head's experts, then as many as fit.

    If trunk and state do not fit, no more layers than need be are the CPU's, the first ones. Of the others the first
    GPU is filled, then the next one, and a layer is left for each if it fits; or they get shares `split` of them. With
    `speeds` of GPUs' memories, slower ones get no more than need be, and equal ones equally much. The layers of a GPU
    get equally many experts, the first of them one more, and none without `experts`. `given`: whether somebody has set
    the budgets; else, what is free may just do for one GPU. Raises TrigraphError when the last budget does not hold
    what is behind the layers.
    """
    rooms, needed = [budget - working_bytes for budget in budgets], weights.trunk_bytes + weights.state_bytes
    if not given and len(budgets) == 1 and needed <= budgets[0] < needed + working_bytes:
        return nowhere(weights)

    def fitting(
        first: int, of_each: int, within: Sequence[int] = rooms, spares: Sequence[int] = (1, 0)
    ) -> list[int] | None:
        """The ends of GPUs but the last, with so many layers before the first one and experts of each layer."""
        sizes = _sizes(weights, of_each, copies=len(rooms) > 1)[first:]
        found = (_ends(sizes, within, first, split, spared=spared) for spared in spares)
        return next((ends for ends in found if ends is not None), None)

    for first in range(len(weights.blocks) + 1):
        if (ends := fitting(first, 0)) is not None:
            break
    else:
        raise _too_small(weights, budgets[-1], working_bytes, several=len(budgets) > 1)
    if ends:  # as many of each layer as may lie on all GPUs
        most = max((layer.experts for layer in weights.layers), default=0) if experts else 0
        of_each = bisect_left(range(1, most + 1), True, key=lambda count: fitting(first, count) is None)
        ends = fitting(first, of_each) or ends
        if not split:
            spares = (1,) if fitting(first, of_each, rooms, (1,)) else (0,)
            within = _spread(lambda within: fitting(first, of_each, within, spares) is not None, rooms, speeds)
            ends = fitting(first, of_each, within, spares) or ends
    host, *parts = weights.divided([first, *ends])
    left = [room - part.trunk_bytes - part.state_bytes for room, part in zip(rooms, parts, strict=True)]
    gpus = [_share(part, room, experts=experts) for part, room in zip(parts, left, strict=True)]
    return Placement(gpus, host)


def _spread(fits: Callable[[Sequence[int]], bool], rooms: Sequence[int], speeds: Sequence[float]) -> Sequence[int]:
    """What GPUs may take of their rooms, within which all fits: the slowest ones as little as can be, then others."""
    for speed in sorted(set(speeds)):
        equal = [own == speed for own in speeds]

        def capped(most: int, rooms: Sequence[int] = rooms, equal: Sequence[bool] = equal) -> Sequence[int]:
            return [min(room, most) if one else room for room, one in zip(rooms, equal, strict=True)]

        rooms = capped(bisect_left(range(max(rooms)), True, key=lambda most: fits(capped(most))))
    return rooms


def _sizes(weights: Weights, experts: int, *, copies: bool) -> list[int]:
    """What each layer takes with so many of its experts, and last all that is behind the layers.

    `copies`: whether the first one has a copy of an embedding that is needed behind the layers.
    """
    sizes = [block.nbytes + block.state_bytes for block in weights.blocks]
    sizes.append(weights.trunk_bytes + weights.state_bytes - sum(sizes))
    sizes[0] += weights.shared_bytes * copies
    for layer in weights.layers:
        place = layer.block if layer.block is not None and layer.block < len(weights.blocks) else -1
        sizes[place] += min(experts, layer.experts) * layer.expert_bytes
    return sizes


def _ends(
    sizes: Sequence[int], rooms: Sequence[int], first: int, split: Sequence[float], *, spared: int
) -> list[int] | None:
    """The end of each GPU's layers but the last one's, which has the rest; None where these do not fit.

    `sizes`: of layers from the first on, and of what is behind them. `spared`: layers that each GPU gets at least.
    """
    layers, start, ends = len(sizes) - 1, 0, list[int]()
    for number, room in enumerate(rooms[:-1]):
        end, most = start, layers - spared * (len(rooms) - 1 - number)
        if split:
            end = round(layers * sum(split[: number + 1]) / sum(split))
        while not split and end < most and sum(sizes[start : end + 1]) <= room:
            end += 1
        if end < start + spared or (start < end and sum(sizes[start:end]) > room):
            return None
        ends.append(first + end)
        start = end
    return ends if sum(sizes[start:]) <= rooms[-1] else None


def _too_small(weights: Weights, budget: int, working_bytes: int, *, several: bool) -> TrigraphError:
    """Says what is needed behind the layers, and what would fit."""
    *_, rest = weights.divided([len(weights.blocks)])
    needed = working_bytes + rest.trunk_bytes + rest.state_bytes
    state_room = budget - working_bytes - rest.trunk_bytes
    if state_room > 0:
        fits = (
            f"a state of {state_room / 1e9:,.2f} GB fits: load with a smaller context, fewer sequences or less "
            "kv_memory, or export with kv_type=q8_0"
        )
    else:
        fits = "take a file with fewer bits a weight"
    whole = ", even with all layers on the CPU" if weights.blocks else ""
    return TrigraphError(
        f"the {'last ' * several}GPU may take {budget / 1e9:,.2f} GB, and the model needs {needed / 1e9:,.2f} GB "
        f"there{whole}: {rest.trunk_bytes / 1e9:,.2f} GB of weights, {rest.state_bytes / 1e9:,.2f} GB of state and "
        f"{working_bytes / 1e9:,.2f} GB to work with; {fits}, or use device=cpu"
    )


def nowhere(weights: Weights) -> Placement:
    """All layers are one GPU's, and all routed experts the host's."""
    return Placement([GpuShare(weights, _slots(weights, 0))], Weights(trunk_bytes=0))


def _share(weights: Weights, room: int, *, experts: bool) -> GpuShare:
    """What a GPU holds that has so many bytes for routed experts, and for pieces of prompts that they meet."""
    whole = GpuShare(weights, _slots(weights, room if experts else 0))
    left = room if whole.is_split else room - (whole.device_bytes - weights.trunk_bytes)
    share = _PIECE_SHARE if experts and whole.is_split else 1
    for tokens, nbytes in _PIECES if weights.layers else ():
        if nbytes * share <= left:
            return GpuShare(weights, _slots(weights, room - nbytes if experts else 0), tokens)
    return whole


def _slots(weights: Weights, room: int) -> dict[str, int]:
    """By layer, how many experts fit into so many bytes; the MTP head's come first."""
    slots: dict[str, int] = {}
    for head in (True, False):
        layers = [layer for layer in weights.layers if layer.head == head]
        slots |= _even(layers, room)
        room -= sum(slots[layer.name] * layer.expert_bytes for layer in layers)
    return slots


def _even(layers: Sequence[ExpertLayer], room: int) -> dict[str, int]:
    """By layer, how many experts fit into so many bytes, equally many of each."""
    slots: dict[str, int] = {}
    waiting = list(layers)
    while waiting:
        each = room // sum(layer.expert_bytes for layer in waiting)
        whole = [layer for layer in waiting if layer.experts <= each]
        taken = whole or waiting
        slots |= {layer.name: min(each, layer.experts) for layer in taken}
        room -= sum(slots[layer.name] * layer.expert_bytes for layer in taken)
        if not whole:
            break
        waiting = [layer for layer in waiting if layer.name not in slots]
    for layer in waiting:
        if layer.expert_bytes <= room:
            slots[layer.name] += 1
            room -= layer.expert_bytes
    return slots
