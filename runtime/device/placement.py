"""Which weights a GPU holds within its budget, and which routed experts stay in the host's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError
from trigraph.models.model import Model
from trigraph.models.names import FFN_DOWN_EXPS, FFN_GATE_EXPS, FFN_GATE_UP_EXPS, FFN_UP_EXPS, NGRAM_TABLE, in_block

WORKING_BYTES = 1 << 30
"""Of a budget, for CUDA itself and for what steps need beside weights and state."""


@dataclass(frozen=True, kw_only=True)
class ExpertLayer:
    """The routed experts of a layer."""

    name: str
    experts: int
    expert_bytes: int
    """Of one of them."""
    chosen: int
    """How many a token chooses."""
    head: bool = False
    """Whether the layer is the MTP head's."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What a model's graphs read."""

    trunk_bytes: int
    """All but routed experts."""
    layers: tuple[ExpertLayer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What lies where."""

    weights: Weights
    state_bytes: int
    slots: Mapping[str, int]
    """By layer, how many of its experts the GPU holds: the first ones."""

    @property
    def is_split(self) -> bool:
        """Whether some experts are the host's."""
        return any(self.slots[layer.name] < layer.experts for layer in self.weights.layers)

    @property
    def device_bytes(self) -> int:
        """Weights on the GPU."""
        return self.weights.trunk_bytes + sum(
            self.slots[layer.name] * layer.expert_bytes for layer in self.weights.layers
        )

    @property
    def host_bytes(self) -> int:
        """Weights in the host's memory."""
        return sum((layer.experts - self.slots[layer.name]) * layer.expert_bytes for layer in self.weights.layers)

    @property
    def host_bytes_per_token(self) -> float:
        """What a token's step reads from the host's memory, if all experts of a layer are chosen equally often."""
        return sum(
            layer.chosen * layer.expert_bytes * (1 - self.slots[layer.name] / layer.experts)
            for layer in self.weights.layers
            if not layer.head
        )

    def sentence(self) -> str:
        """What lies where, for the user."""
        if not self.is_split:
            return (
                f"the GPU holds all {self.device_bytes / 1e9:,.1f} GB of weights and {self.state_bytes / 1e9:,.1f} GB "
                "of state"
            )
        held, experts = sum(self.slots.values()), sum(layer.experts for layer in self.weights.layers)
        return (
            f"the GPU holds {self.device_bytes / 1e9:,.1f} GB of weights, with {held:,} of {experts:,} routed experts, "
            f"and {self.state_bytes / 1e9:,.1f} GB of state; the CPU computes the other experts, "
            f"{self.host_bytes / 1e9:,.1f} GB, of which a token reads {self.host_bytes_per_token / 1e9:,.2f} GB"
        )


def first_slots(experts: int, held: int) -> NDArray[np.int32]:
    """By expert of a layer its slot on the GPU, or -1, where that holds the first ones."""
    slots = np.full(experts, -1, np.int32)
    slots[:held] = np.arange(held)
    return slots


def weights_of_file(model: Model) -> Weights:
    """What the graphs of a model's file will read; a table of n-grams stays in it."""
    config, layers = model.config, []
    for number in range(config.trunk_layers + config.mtp_layers):
        names = (in_block(number, name) for name in (FFN_GATE_UP_EXPS, FFN_GATE_EXPS, FFN_UP_EXPS, FFN_DOWN_EXPS))
        size = sum(tensor.nbytes for name in names if (tensor := model.find(name)) is not None)
        if size:
            layers.append(
                ExpertLayer(
                    name=str(number),
                    experts=config.experts,
                    expert_bytes=size // config.experts,
                    chosen=config.experts_used,
                    head=number >= config.trunk_layers,
                )
            )
    routed = sum(layer.experts * layer.expert_bytes for layer in layers)
    total = sum(tensor.nbytes for name, tensor in model.tensors.items() if name != NGRAM_TABLE)
    return Weights(trunk_bytes=total - routed, layers=tuple(layers))


def place(weights: Weights, state_bytes: int, budget: int, working_bytes: int = WORKING_BYTES) -> Placement:
    """What a GPU holds that may take `budget` bytes: trunk and state, the MTP head's experts, then as many as fit.

    The other layers get equally many experts, the first layers one more. Raises TrigraphError when the budget holds
    the trunk and the state not at all.
    """
    left = budget - working_bytes - weights.trunk_bytes - state_bytes
    if left < 0:
        raise _too_small(weights, state_bytes, budget, working_bytes)
    slots: dict[str, int] = {}
    for head in (True, False):
        layers = [layer for layer in weights.layers if layer.head == head]
        slots |= _even(layers, left)
        left -= sum(slots[layer.name] * layer.expert_bytes for layer in layers)
    return Placement(weights=weights, state_bytes=state_bytes, slots=slots)


def _too_small(weights: Weights, state_bytes: int, budget: int, working_bytes: int) -> TrigraphError:
    """Says what is needed, and what would fit."""
    needed = working_bytes + weights.trunk_bytes + state_bytes
    even = ", even with all routed experts on the CPU" if weights.layers else ""
    state_room = budget - working_bytes - weights.trunk_bytes
    weights_room = budget - working_bytes - state_bytes
    if state_room > 0:
        fits = (
            f"a state of {state_room / 1e9:,.2f} GB fits: load with a smaller context, fewer sequences or less "
            "--kv-memory, or export with --kv-type q8_0"
        )
    elif weights_room > 0 and not weights.layers:
        fits = f"with this state, a file of {weights_room / 1e9:,.2f} GB fits: take one with fewer bits a weight"
    else:
        fits = "load with a smaller context or fewer sequences"
    return TrigraphError(
        f"the GPU may take {budget / 1e9:,.2f} GB, and the model needs {needed / 1e9:,.2f} GB there{even}: "
        f"{weights.trunk_bytes / 1e9:,.2f} GB of weights, {state_bytes / 1e9:,.2f} GB of state and "
        f"{working_bytes / 1e9:,.2f} GB to work with; {fits}, or use --device cpu"
    )


def nowhere(weights: Weights, state_bytes: int) -> Placement:
    """All routed experts are the host's."""
    return Placement(weights=weights, state_bytes=state_bytes, slots={layer.name: 0 for layer in weights.layers})


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
