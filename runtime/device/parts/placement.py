"""What lies where: layers and routed experts on GPUs and in the host's memory, and what a token reads of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trigraph.runtime.device.parts.weights import ExpertLayer, Weights


@dataclass(frozen=True)
class GpuShare:
    """What a GPU has of a model: consecutive layers, and the last one all that is behind them."""

    weights: Weights
    """All that its layers read; of routed experts the host has some."""
    slots: Mapping[str, int]
    """By layer, how many of its experts the GPU holds: the first ones."""
    piece: int | None = None
    """Most tokens of prompts in a step, where there is memory for more than usual."""

    @property
    def is_split(self) -> bool:
        """Whether some experts of its layers are the host's."""
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
        return self.weights.nbytes - self.device_bytes

    @property
    def host_bytes_per_token(self) -> float:
        """What a token's step reads of these, if all experts of a layer are chosen equally often."""
        return self._chosen_bytes(lambda layer: layer.experts - self.slots[layer.name])

    @property
    def device_bytes_per_token(self) -> float:
        """What it reads on the GPU at most: the head's weights are among these, and all rows of embeddings."""
        return self.weights.trunk_bytes + self._chosen_bytes(lambda layer: self.slots[layer.name])

    def seconds(self, rate: float, host_rate: float) -> float:
        """What a token's reads take at these bytes a second; the host reads its experts while the GPU reads its own."""
        trunk = self.weights.trunk_bytes
        experts = (self.device_bytes_per_token - trunk) / rate
        return trunk / rate + max(experts, self.host_bytes_per_token / host_rate)

    def _chosen_bytes(self, experts: Callable[[ExpertLayer], int]) -> float:
        """What a token reads of so many experts of the layers in the trunk."""
        return sum(
            layer.chosen * layer.expert_bytes * experts(layer) / layer.experts
            for layer in self.weights.layers
            if not layer.head
        )

    def __str__(self) -> str:
        held, experts = sum(self.slots.values()), sum(layer.experts for layer in self.weights.layers)
        routed = f", with {held:,} of {experts:,} routed experts," if self.is_split else ""
        state = f"{self.weights.state_bytes / 1e9:,.1f} GB of state"
        return f"{self.device_bytes / 1e9:,.1f} GB of weights{routed} and {state}"


@dataclass(frozen=True)
class Placement:
    """What lies where: the first layers in the host's memory, those that follow on one GPU after the other."""

    gpus: Sequence[GpuShare]
    """By GPU. The last one has what is behind the layers; others may have no layers."""
    host: Weights
    """The first layers, which the CPU computes as a whole."""

    @property
    def host_layers(self) -> int:
        """How many layers the CPU computes as a whole."""
        return len(self.host.blocks)

    @property
    def ends(self) -> Sequence[int]:
        """How many of the trunk's layers lie before the end of each GPU's."""
        found, end = list[int](), self.host_layers
        for gpu in self.gpus:
            found.append(end := end + len(gpu.weights.blocks))
        return found

    @property
    def host_bytes(self) -> int:
        """Weights in the host's memory."""
        return self.host.nbytes + sum(gpu.host_bytes for gpu in self.gpus)

    @property
    def host_bytes_per_token(self) -> float:
        """What a token's step reads from the host's memory, if all experts of a layer are chosen equally often."""
        return self._layer_bytes_per_token + sum(gpu.host_bytes_per_token for gpu in self.gpus)

    @property
    def _layer_bytes_per_token(self) -> float:
        """What it reads of the layers that the CPU computes as a whole."""
        whole = sum(block.read_bytes for block in self.host.blocks)
        return whole + sum(layer.chosen * layer.expert_bytes for layer in self.host.layers)

    def seconds(self, rates: Sequence[float], host_rate: float) -> float:
        """What a token's reads take at these bytes a second of each GPU and of the host: part after part."""
        gpus = sum(gpu.seconds(rate, host_rate) for gpu, rate in zip(self.gpus, rates, strict=True))
        return gpus + self._layer_bytes_per_token / host_rate

    def sentence(self, names: Sequence[str] = ()) -> str:
        """What lies where and what a token reads, for the user. `names`: of the GPUs, if there are several."""
        reads, starts, last = [gpu.device_bytes_per_token for gpu in self.gpus], [self.host_layers, *self.ends], ""
        if len(self.gpus) == 1:
            names, (gpu,) = ["the GPU"], self.gpus
            if not self.host_bytes:
                return (
                    f"the GPU holds all {gpu.device_bytes / 1e9:,.1f} GB of weights, of which a token reads at most "
                    f"{reads[0] / 1e9:,.2f} GB, and {gpu.weights.state_bytes / 1e9:,.1f} GB of state"
                )
            layers = [""]
        else:
            layers = [_layers(start, end) for start, end in pairwise(starts)]
            last = ", and the output head"
        read = ", ".join(f"{size / 1e9:,.2f} GB of {name}'s" for size, name in zip(reads, names, strict=True))
        held = [f"{name} holds {own}{gpu}" for name, own, gpu in zip(names, layers, self.gpus, strict=True)]
        held[-1] += last
        if self.host_bytes:
            theirs = ["the other experts"] if any(gpu.is_split for gpu in self.gpus) else []
            size = f"{self.host_bytes / 1e9:,.1f} GB"
            if self.host_layers:
                theirs.insert(0, f"the first {self.host_layers} of {self.ends[-1]} layers")
                size += f" with {self.host.state_bytes / 1e9:,.1f} GB of state"
            held.append(f"the CPU computes {' and '.join(theirs)}, {size}")
            read = f"{self.host_bytes_per_token / 1e9:,.2f} GB of the host's memory and at most {read}"
        else:
            read = f"at most {read} memory"
        return f"{'; '.join(held)}; a token reads {read}"


def _layers(start: int, end: int) -> str:
    return "" if start == end else f"layer {end}, " if start + 1 == end else f"layers {start + 1} to {end}, "


def first_slots(experts: int, held: int) -> NDArray[np.int32]:
    """By expert of a layer its slot on the GPU, or -1, where that holds the first ones."""
    slots = np.full(experts, -1, np.int32)
    slots[:held] = np.arange(held)
    return slots
