"""What a model's graphs read, by layer, as a file says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

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
    """What a model's graphs read, beside state."""

    trunk_bytes: int
    """All but routed experts."""
    layers: tuple[ExpertLayer, ...] = ()
    blocks: tuple[Block, ...] = ()
    """The trunk's layers, which `trunk_bytes` includes."""

    state_bytes: int = 0
    """State of sequences, which is where the weights are."""
    shared_bytes: int = 0
    """The part of `trunk_bytes` that the first layer reads, and what is behind the layers too: a tied embedding."""

    @property
    def nbytes(self) -> int:
        """All of them."""
        return self.trunk_bytes + sum(layer.experts * layer.expert_bytes for layer in self.layers)

    def divided(self, ends: Sequence[int]) -> list[Weights]:
        """The weights of the layers before each of `ends`, which rise, and all others."""
        parts: list[Weights] = []
        for start, end in pairwise([0, *ends]):
            own = self.blocks[start:end]
            layers = tuple(layer for layer in self.layers if layer.block is not None and start <= layer.block < end)
            size, state = sum(block.nbytes for block in own), sum(block.state_bytes for block in own)
            size += self.shared_bytes if start == 0 < end else 0
            parts.append(Weights(trunk_bytes=size, layers=layers, blocks=own, state_bytes=state))
        last = max((0, *ends))
        before, taken = self.blocks[:last], {layer.name for part in parts for layer in part.layers}
        rest = Weights(
            trunk_bytes=self.trunk_bytes - sum(block.nbytes for block in before),
            layers=tuple(layer for layer in self.layers if layer.name not in taken),
            blocks=self.blocks[last:],
            state_bytes=self.state_bytes - sum(block.state_bytes for block in before),
        )
        return [*parts, rest]


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
        if number < config.trunk_layers:
            whole = sum(tensor.nbytes for name, tensor in model.tensors.items() if layer_of(name) == number)
            blocks.append(Block(nbytes=whole - size, read_bytes=whole - size, state_bytes=of_layer[number]))
    embedding, shared = model.tensor(TOKEN_EMBD).nbytes, _needs_embedding(model)
    if not shared:
        blocks[0] = replace(blocks[0], nbytes=blocks[0].nbytes + embedding)
    routed = sum(layer.experts * layer.expert_bytes for layer in layers)
    return Weights(
        trunk_bytes=total - routed,
        layers=tuple(layers),
        blocks=tuple(blocks),
        state_bytes=sum(state.values()),
        shared_bytes=embedding if shared else 0,
    )


def _needs_embedding(model: Model) -> bool:
    """Whether something behind the trunk's layers reads the embedding."""
    config = model.config
    own = model.find(in_block(config.trunk_layers, NEXTN_EMBED_TOKENS))
    return config.tied or (config.mtp_layers > 0 and own is None)
