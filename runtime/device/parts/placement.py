"""Which weights a GPU holds within its budget, and which layers and routed experts stay in the host's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError
from trigraph.models.model import Model
from trigraph.models.names import (
    FFN_DOWN_EXPS,
    FFN_GATE_EXPS,
    FFN_GATE_UP_EXPS,
    FFN_UP_EXPS,
    NEXTN_EMBED_TOKENS,
    NGRAM_TABLE,
    TOKEN_EMBD,
    in_block,
)
from trigraph.runtime.device.parts.layers import layer_of, state_by_layer

WORKING_BYTES = 1 << 30
"""The part of a budget for CUDA itself, and for what steps need beside weights and state."""


@dataclass(frozen=True, kw_only=True)
class ExpertLayer:
    """The routed experts of a layer."""

    name: str
    experts: int
    expert_bytes: int
    """The bytes of one expert."""
    chosen: int
    """How many a token chooses."""
    head: bool = False
    """Whether the layer is the MTP head's."""
    block: int | None = None
    """The number of the layer."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A layer of the trunk, without its routed experts: what a GPU need not hold when the CPU computes the layer."""

    nbytes: int
    """The bytes of weights; the first layer's with the embedding, unless a GPU needs that for something else."""
    read_bytes: int
    """The bytes of weights that a step reads."""
    state_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What a model's graphs read."""

    trunk_bytes: int
    """All but routed experts."""
    layers: tuple[ExpertLayer, ...] = ()
    blocks: tuple[Block, ...] = ()
    """The trunk's layers, which `trunk_bytes` includes."""

    @property
    def nbytes(self) -> int:
        """All of them."""
        return self.trunk_bytes + sum(layer.experts * layer.expert_bytes for layer in self.layers)

    def divided(self, count: int) -> tuple[Weights, Weights]:
        """The weights of the first `count` layers, and all others."""
        size = sum(block.nbytes for block in self.blocks[:count])
        mine = {layer.name for layer in self.layers if layer.block is not None and layer.block < count}
        first, rest = (
            tuple(layer for layer in self.layers if (layer.name in mine) == inside) for inside in (True, False)
        )
        return (
            Weights(trunk_bytes=size, layers=first, blocks=self.blocks[:count]),
            Weights(trunk_bytes=self.trunk_bytes - size, layers=rest, blocks=self.blocks[count:]),
        )


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What lies where."""

    weights: Weights
    """All but those of the host's layers."""
    state_bytes: int
    """On the GPU."""
    slots: Mapping[str, int]
    """By layer, how many of its experts the GPU holds: the first ones."""
    host: Weights = Weights(trunk_bytes=0)
    """The first layers, which the CPU computes as a whole."""

    @property
    def host_layers(self) -> int:
        """How many layers the CPU computes as a whole."""
        return len(self.host.blocks)

    @property
    def is_split(self) -> bool:
        """Whether some experts of the GPU's layers are the host's."""
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
        others = sum((layer.experts - self.slots[layer.name]) * layer.expert_bytes for layer in self.weights.layers)
        return self.host.nbytes + others

    @property
    def host_bytes_per_token(self) -> float:
        """What a token's step reads from the host's memory, if all experts of a layer are chosen equally often."""
        whole = sum(block.read_bytes for block in self.host.blocks)
        routed = sum(layer.chosen * layer.expert_bytes for layer in self.host.layers)
        return whole + routed + self._chosen_bytes(lambda layer: layer.experts - self.slots[layer.name])

    @property
    def device_bytes_per_token(self) -> float:
        """What it reads on the GPU at most: the head's weights are among these, and all rows of embeddings."""
        return self.weights.trunk_bytes + self._chosen_bytes(lambda layer: self.slots[layer.name])

    def _chosen_bytes(self, experts: Callable[[ExpertLayer], int]) -> float:
        """What a token reads of so many experts of the GPU's layers in the trunk."""
        return sum(
            layer.chosen * layer.expert_bytes * experts(layer) / layer.experts
            for layer in self.weights.layers
            if not layer.head
        )

    def sentence(self) -> str:
        """What lies where and what a token reads, for the user."""
        on_gpu = f"{self.device_bytes_per_token / 1e9:,.2f} GB"
        if not self.is_split and not self.host_layers:
            return (
                f"the GPU holds all {self.device_bytes / 1e9:,.1f} GB of weights, of which a token reads at most "
                f"{on_gpu}, and {self.state_bytes / 1e9:,.1f} GB of state"
            )
        held, experts = sum(self.slots.values()), sum(layer.experts for layer in self.weights.layers)
        routed = f", with {held:,} of {experts:,} routed experts," if self.is_split else ""
        theirs = ["the other experts"] if self.is_split else []
        size = f"{self.host_bytes / 1e9:,.1f} GB"
        if self.host_layers:
            theirs.insert(0, f"the first {self.host_layers} of {self.host_layers + len(self.weights.blocks)} layers")
            size += f" with {sum(block.state_bytes for block in self.host.blocks) / 1e9:,.1f} GB of state"
        return (
            f"the GPU holds {self.device_bytes / 1e9:,.1f} GB of weights{routed} and {self.state_bytes / 1e9:,.1f} GB "
            f"of state; the CPU computes {' and '.join(theirs)}, {size}; a token reads "
            f"{self.host_bytes_per_token / 1e9:,.2f} GB of the host's memory and at most {on_gpu} of the GPU's"
        )


def first_slots(experts: int, held: int) -> NDArray[np.int32]:
    """By expert of a layer its slot on the GPU, or -1, where that holds the first ones."""
    slots = np.full(experts, -1, np.int32)
    slots[:held] = np.arange(held)
    return slots


def weights_of_file(model: Model, state: Mapping[str, int] = MappingProxyType({})) -> Weights:
    """What the graphs of a model's file will read; a table of n-grams stays in it.

    `state`: bytes of state tensors by name.
    """
    config, layers, blocks = model.config, list[ExpertLayer](), list[Block]()
    of_layer = state_by_layer(state)
    total = sum(tensor.nbytes for name, tensor in model.tensors.items() if name != NGRAM_TABLE)
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
                    block=number,
                )
            )
        if number < config.trunk_layers and config.streams is None:
            whole = sum(tensor.nbytes for name, tensor in model.tensors.items() if layer_of(name) == number)
            blocks.append(Block(nbytes=whole - size, read_bytes=whole - size, state_bytes=of_layer[number]))
    if blocks and not _needs_embedding(model):
        blocks[0] = replace(blocks[0], nbytes=blocks[0].nbytes + model.tensor(TOKEN_EMBD).nbytes)
    routed = sum(layer.experts * layer.expert_bytes for layer in layers)
    return Weights(trunk_bytes=total - routed, layers=tuple(layers), blocks=tuple(blocks))


def _needs_embedding(model: Model) -> bool:
    """Whether something behind the trunk's layers reads the embedding."""
    config = model.config
    own = model.find(in_block(config.trunk_layers, NEXTN_EMBED_TOKENS))
    return config.tied or (config.mtp_layers > 0 and own is None)


def place(weights: Weights, state_bytes: int, budget: int, working_bytes: int = WORKING_BYTES) -> Placement:
    """What a GPU holds that may take `budget` bytes: trunk and state, the MTP head's experts, then as many as fit.

    If trunk and state do not fit, no more layers than need be are the CPU's, the first ones. The other layers get
    equally many experts, the first of them one more. Raises TrigraphError when the budget holds not even what is
    behind the layers.
    """
    for count in range(len(weights.blocks) + 1):
        host, rest = weights.divided(count)
        state = state_bytes - sum(block.state_bytes for block in host.blocks)
        left = budget - working_bytes - rest.trunk_bytes - state
        if left >= 0:
            break
    else:
        raise _too_small(rest, state, budget, working_bytes, cut=bool(weights.blocks))
    slots: dict[str, int] = {}
    for head in (True, False):
        layers = [layer for layer in rest.layers if layer.head == head]
        slots |= _even(layers, left)
        left -= sum(slots[layer.name] * layer.expert_bytes for layer in layers)
    return Placement(weights=rest, state_bytes=state, slots=slots, host=host)


def placed(
    weights: Weights, state_bytes: int, budget: int | None, free: int, total: int, *, all_on_host: bool
) -> Placement:
    """Where weights and state go on a GPU. `budget`: bytes that they may take; None for what is free.

    `all_on_host`: the routed experts. Raises TrigraphError for a budget that is above what the GPU has, or too small.
    """
    if budget is not None and budget > total:
        raise TrigraphError(f"gpu_memory is {budget / 1e9:,.2f} GB, and the GPU has {total / 1e9:,.2f} GB in all")
    most = free if budget is None else min(budget, free)
    if budget is None and weights.trunk_bytes + state_bytes <= most < weights.trunk_bytes + state_bytes + WORKING_BYTES:
        return nowhere(weights, state_bytes)  # which may just do
    placement = place(weights, state_bytes, most)
    return replace(placement, slots=_no_slots(placement.weights)) if all_on_host else placement


def _too_small(weights: Weights, state_bytes: int, budget: int, working_bytes: int, *, cut: bool) -> TrigraphError:
    """Says what is needed, and what would fit."""
    needed = working_bytes + weights.trunk_bytes + state_bytes
    state_room = budget - working_bytes - weights.trunk_bytes
    if state_room > 0:
        fits = (
            f"a state of {state_room / 1e9:,.2f} GB fits: load with a smaller context, fewer sequences or less "
            "--kv-memory, or export with --kv-type q8_0"
        )
    else:
        fits = "take a file with fewer bits a weight"
    whole = ", even with all layers on the CPU" if cut else ""
    return TrigraphError(
        f"the GPU may take {budget / 1e9:,.2f} GB, and the model needs {needed / 1e9:,.2f} GB there{whole}: "
        f"{weights.trunk_bytes / 1e9:,.2f} GB of weights, {state_bytes / 1e9:,.2f} GB of state and "
        f"{working_bytes / 1e9:,.2f} GB to work with; {fits}, or use --device cpu"
    )


def nowhere(weights: Weights, state_bytes: int) -> Placement:
    """All layers are the GPU's, and all routed experts the host's."""
    return Placement(weights=weights, state_bytes=state_bytes, slots=_no_slots(weights))


def _no_slots(weights: Weights) -> dict[str, int]:
    return {layer.name: 0 for layer in weights.layers}


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
