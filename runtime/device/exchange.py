"""What a step takes from the host, and gives it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import onnxruntime as ort
from numpy.typing import NDArray

Array = NDArray[Any]
Memory = Any
"""An array on a device, as `Device.zeros` makes it: `shape`, `dtype`, `nbytes`, rows to read and write by index."""
DeviceInputs = Mapping[str, Sequence[int]]
"""By input, for each of its rows the address on the device to take the row from, or 0 for the host's."""
NO_DEVICE_INPUTS: DeviceInputs = MappingProxyType({})


class Exchange:
    """The host's side of a step: fill `inputs`, `send`, run, `receive`, read `outputs`."""

    def __init__(self, inputs: Mapping[str, Array], outputs: Mapping[str, Any]) -> None:
        self._inputs = inputs
        self.outputs = outputs

    @property
    def inputs(self) -> Mapping[str, Array]:
        """Arrays to fill in; in each step all of them."""
        return self._inputs

    @property
    def sent(self) -> Mapping[str, Array]:
        """The inputs of the step that was sent last."""
        return self._inputs

    def send(self, device_inputs: DeviceInputs = NO_DEVICE_INPUTS) -> None:
        """Lets the graph see what was filled in, but for rows that are on the device already."""

    def receive(self) -> None:
        """Waits for the step. Raises TrigraphError when the device found a bad value in its inputs."""

    def result(self, name: str) -> Memory:
        """An output where the graph writes it."""
        return self.outputs[name]

    def fetch(self, array: Array, sources: Sequence[int]) -> None:
        """Fills rows of the host's array from their addresses on the device, in its own time; 0 leaves a row."""

    def hand_over(self, name: str, array: Array) -> None:
        """Fills the host's array with an output, in the device's own time."""
        array[...] = self.outputs[name]

    def takes(self, name: str, maker: Exchange) -> bool:
        """Whether an input, when it is sent next, comes straight from the maker's output, and not from the host."""
        return False

    def follow(self, other: Exchange) -> None:
        """What is sent next is so after all that the other one's device has been told to do."""
        other.wait()

    def wait(self) -> None:
        """Waits for all that the device has been told to do."""


@dataclass(frozen=True, eq=False)
class BoundStep:
    """A step of one shape, and the memory that its session reads and writes."""

    shape: Hashable
    tokens: int
    io: ort.IOBinding
    inputs: Mapping[str, Memory]
    """Where the graph reads what `exchange` sends."""
    exchange: Exchange


class Captures(Protocol):
    """Steps of one session that a device has recorded for the calling thread, to replay each as a whole."""

    def captured(self, shape: Hashable) -> BoundStep | None:
        """The recorded step of that shape, whose memory it needs for good."""

    def replay(self, step: BoundStep, run: Callable[[ort.RunOptions], object]) -> ort.RunOptions | None:
        """How the step is replayed, which `run` may have recorded just now; None where it is not recorded."""
