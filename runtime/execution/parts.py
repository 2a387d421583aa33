"""A model in parts: consecutive layers, each on a device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from trigraph.models.checks import check
from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.device.choice import EXPERTS, open_device, open_devices
from trigraph.runtime.device.device import Device
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.device.parts.experts import weights_of
from trigraph.runtime.device.parts.layers import state_layer
from trigraph.runtime.device.parts.placing import WORKING_BYTES, place
from trigraph.runtime.device.parts.token_time import token_time
from trigraph.runtime.device.repack.weights import repacked_weights
from trigraph.runtime.device.weight_source import WeightSource


@dataclass(frozen=True)
class Part:
    """Consecutive layers of the trunk on a device: first those with the embedding, last those with all behind them."""

    device: Device
    source: WeightSource
    end: int = 0
    """How many of the trunk's layers it and the parts before it have; of no meaning for the last one."""

    @property
    def chunk(self) -> int:
        """Most tokens of prompts in a step that suit it."""
        return self.source.piece or self.device.chunk


@dataclass(frozen=True)
class Memories:
    """The devices of a model, whose layers follow each other, and what it may take of each."""

    devices: Sequence[Device]
    budgets: Sequence[int] | None = None
    """Bytes for weights, state and what steps need, by device; None for what is free."""
    split: Sequence[float] = ()
    """How many of the layers each device gets, in proportion; none where bytes decide."""
    experts: bool = True
    """Whether routed experts may lie on GPUs."""
    others: Sequence[Device] = ()
    """Further GPUs, which nobody has named: for a model that the first one does not hold."""

    @classmethod
    def of(cls, names: str, gpu_memory: Any, split: Any, experts: str, *, portable: bool = False) -> Memories:
        """As an engine's settings have them, unchecked. Raises TrigraphError for settings that cannot be."""
        if experts not in EXPERTS:
            raise TrigraphError(f"experts is {experts}; it must be one of {', '.join(EXPERTS)}")
        devices, numbers = open_devices(names, portable), {"gpu_memory": gpu_memory, "split": split}
        for name, kind, least in (("gpu_memory", int, "1 or more"), ("split", float, "above 0")):
            if (value := numbers[name]) is None:
                continue
            if names == "cpu":
                raise TrigraphError(f"{name} is for a GPU, and the device is cpu; use device=cuda, or leave it out")
            values = list(value) if isinstance(value, list | tuple) else [value]
            for number in values:
                check(name, number, kind, lambda found: found > 0, least)
            numbers[name] = values * len(devices) if len(values) == 1 else values
            if len(numbers[name]) != len(devices):
                raise TrigraphError(f"{name} is {quote(value)}, and the device {names}; give one number for each GPU")
        for budget, device in zip(numbers["gpu_memory"] or (), devices, strict=False):
            if (total := device.total_memory()) is not None and budget > total:
                gpu = "the GPU" if len(devices) == 1 else device.label
                raise TrigraphError(f"gpu_memory is {budget / 1e9:,.2f} GB, and {gpu} has {total / 1e9:,.2f} GB in all")
        others = devices[0].others() if names in ("cuda", "auto") and experts == "gpu" else ()
        return cls(devices, numbers["gpu_memory"], numbers["split"] or (), experts == "gpu", others)

    def holding(self, needed: Callable[[Memories], int]) -> Memories:
        """These with as few of the others as hold so many bytes of weights and state, or with all of them."""
        found = self
        for device in self.others:
            if sum(found.nbytes()) >= needed(found) + len(found.devices) * WORKING_BYTES:
                break
            budgets = None if found.budgets is None else [*found.budgets, *found.budgets[:1]]
            found = replace(found, devices=[*found.devices, device], budgets=budgets)
        return found

    def nbytes(self, unknown: int = 0) -> Sequence[int]:
        """Bytes by device, at most those that are free, which are `unknown` where the system does not say."""
        times = Counter(device.label for device in self.devices)
        free = [(device.free_memory() or unknown) // times[device.label] for device in self.devices]
        return free if self.budgets is None else [min(pair) for pair in zip(free, self.budgets, strict=True)]

    def parts(
        self,
        mapped: MappedWeights,
        threads: int,
        models: Callable[[], Mapping[str, onnx.ModelProto]],
        state: Mapping[str, int],
        counts: Path,
        *,
        repacked: bool,
    ) -> tuple[Sequence[Part], Sequence[str]]:
        """The parts, and what the user should know of them.

        `models`: loads the graphs by name. `state`: bytes of the state tensors by name. `counts`: the file that says
        from one start to the next how often experts were chosen. `repacked`: weights, which the CPU alone reads. Raises
        TrigraphError for that on a GPU, and for budgets that are too small.
        """
        *_, last = self.devices
        if repacked or last.is_host:
            return [Part(last, repacked_weights(mapped, last) if repacked else WeightSource(mapped))], ()
        if last.arithmetic:
            budget, source = self.budgets[0] if self.budgets else None, last.weight_source(mapped, threads)
            return [Part(last, source)], source.hold(models, state, budget)
        weights = weights_of(models(), state)
        given, experts = self.budgets is not None, {layer.name: layer.experts for layer in weights.layers}
        speeds = [device.memory_rate() for device in self.devices]
        placement = place(weights, self.nbytes(), given=given, experts=self.experts, split=self.split, speeds=speeds)
        parts = []
        if placement.host_layers:
            parts.append(Part(open_device("cpu"), WeightSource(mapped), placement.host_layers))
        for device, gpu, end in zip(self.devices, placement.gpus, placement.ends, strict=True):
            if gpu.weights.blocks or device is last:
                source = device.weight_source(mapped, threads)
                source.place(gpu, experts, counts)
                parts.append(Part(device, source, end))
        if len(parts) == 1 and not placement.host_bytes:
            return parts, []
        sentence = placement.sentence([device.label for device in self.devices])
        return parts, [sentence + token_time(placement, self.devices, threads)]


def state_device(parts: Sequence[Part], tensor: str) -> Device:
    """Where a state tensor lies: beside the layer that it is of, or with what is behind the layers."""
    (*before, last), layer = parts, state_layer(tensor)
    found = (part.device for part in before if layer is not None and layer < part.end)
    return next(found, last.device)
