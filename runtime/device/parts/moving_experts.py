"""Experts that are used more take the places on the GPU of experts that are used less, between steps."""

from __future__ import annotations

import ctypes
import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trigraph.custom_ops import library_function
from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.device_memory import DeviceMemory, pinned_array
from trigraph.runtime.device.parts.expert_counts import Counts, read_counts, write_counts
from trigraph.runtime.device.parts.placement import GpuShare, first_slots

_log = logging.getLogger("trigraph.device")

EVERY = 16  # verifies from one look at the counts to the next
BYTES_A_STEP = 8 << 20  # that are moved before a verify, or one expert; about a millisecond
BYTES_A_SECOND = 256 << 20  # so that moves take a twentieth of the time at most
_DECAY = 0.9  # of counts, from look to look
_RATIO, _LEAST = 1.25, 4.0  # times, and counts, that a newcomer is used more
_SAVING_SECONDS = 600.0  # between two files, beside the one at the end


@dataclass(frozen=True)
class Stack:
    """Matrices of a layer's experts, in the host's memory and in slots on the device, by address."""

    host: int
    device: int
    expert_bytes: int


@dataclass(eq=False)
class SharedLayer:
    """A layer whose experts lie on both sides."""

    number: int
    slots: NDArray[np.int32]
    """By expert, its slot or -1."""
    expert_bytes: int
    """The bytes of one expert."""
    stacks: Sequence[Stack] = ()
    """Gates first; none before they are known, and where the device has no slots."""
    used: Counts = field(init=False)
    """How often each expert was chosen lately."""

    def __post_init__(self) -> None:
        self.used = np.zeros(len(self.slots))

    def swaps(self) -> list[tuple[float, int, int]]:
        """Which experts should come, and which go for them, behind how much more the first are used."""
        used, held, others = self.used, np.flatnonzero(self.slots >= 0), np.flatnonzero(self.slots < 0)
        coming, going = others[np.argsort(-used[others], kind="stable")], held[np.argsort(used[held], kind="stable")]
        pairs = zip(coming.tolist(), going.tolist(), strict=False)
        return [
            (float(used[come] - used[go]), come, go) for come, go in pairs if used[come] > _RATIO * used[go] + _LEAST
        ]


class MovingExperts:
    """The tables of all layers, on the device, and what changes them.

    Everything is enqueued on the engine's stream, between steps: so no step sees a change, and captured ones find the
    tables where they were. Counts are made by the host's side of each layer.
    """

    def __init__(self, device: DeviceMemory, share: GpuShare, experts: Mapping[str, int], counts: Path) -> None:
        """`experts`: of each layer of the model. `counts`: the file that keeps them from one start to the next."""
        self._device, self._path, self._experts = device, counts, experts
        layers = [layer for layer in share.weights.layers if share.slots[layer.name] < layer.experts]
        shape = (len(layers), max(layer.experts for layer in layers))
        largest = max(BYTES_A_STEP, *(layer.expert_bytes for layer in layers))
        self._layers: dict[str, SharedLayer] = {}
        self._row_bytes = 4 * shape[1]
        self._tables = device.allocate(shape[0] * self._row_bytes)
        weakref.finalize(self, device.free, self._tables, False)
        self._pinned = pinned_array(device, shape, np.dtype(np.int32))
        self._staging = pinned_array(device, (largest,), np.dtype(np.uint8))
        self._copied = device.make_event()
        weakref.finalize(self, device.free_event, self._copied)
        self._queue: deque[tuple[SharedLayer, int, int]] = deque()
        self._steps = 0
        self._due = 0.0  # when more may move, by the monotonic clock
        self.moved = 0
        """Experts so far."""
        for number, layer in enumerate(layers):
            slots = first_slots(layer.experts, share.slots[layer.name])
            self._layers[layer.name] = shared = SharedLayer(number, slots, layer.expert_bytes)
            self._send_table(shared)
        device.wait()
        for name, used in read_counts(counts, experts).items():
            if name in self._layers:
                self._layers[name].used[:] = used
        self._saved = time.monotonic()
        self._release: Callable[[int], None]  # there where some have slots
        give_back = weakref.WeakMethod(self.give_back)
        device.reclaim = lambda: (call := give_back()) and call()
        weakref.finalize(self, _save, counts, self._layers, experts)  # also where the program ends

    @property
    def places(self) -> Mapping[str, int]:
        """The addresses of the layers' tables in the host's memory, as steps that are enqueued next will find them."""
        return {name: self._pinned[layer.number].ctypes.data for name, layer in self._layers.items()}

    def table(self, name: str) -> int:
        """The address of a layer's table, int32 [experts], on the device."""
        return self._tables + self._layers[name].number * self._row_bytes

    def found(self, stacks: Mapping[str, Sequence[Stack]], release: Callable[[int], None]) -> None:
        """Where the weights of these layers lie; before, theirs do not move.

        Those that were used most before this start move now, whatever it takes. `release`: gives back the memory on the
        device that begins with a layer's first stack.
        """
        self._release = release
        for name, places in stacks.items():
            layer = self._layers[name]
            new, layer.stacks = not layer.stacks, places
            self._queue.extend((layer, come, go) for _, come, go in (layer.swaps() if new else ()))
        while self._queue:
            self._move_some()

    def before_step(self) -> None:
        """Looks at the counts now and then, and moves a few experts."""
        self._steps += 1
        if self._steps % EVERY == 0 and not self._queue:
            self._look()
        if self._queue and time.monotonic() >= self._due:
            self._move_some()

    def give_back(self) -> bool:
        """Leaves a layer's experts to the host, and gives their memory back; whether there were any.

        Of all layers, that whose experts on the device are used least. Steps that are enqueued are awaited.
        """
        layers = [layer for layer in self._layers.values() if layer.stacks]
        if not layers:
            return False
        layer = min(layers, key=lambda layer: float(layer.used[layer.slots >= 0].sum()))
        self._queue = deque(move for move in self._queue if move[0] is not layer)
        count = int((layer.slots >= 0).sum())
        layer.slots[:] = -1
        self._send_table(layer)
        with suppress(TrigraphError):  # of the step that had no memory
            self._device.wait()
        address, layer.stacks = layer.stacks[0].device, ()
        self._release(address)
        _log.warning(
            "GPU %d has no memory left: it gives back that of %d experts, %.0f MB, which the CPU computes from now on",
            self._device.number,
            count,
            count * layer.expert_bytes / 1e6,
        )
        return True

    def _move_some(self) -> None:
        """As many experts as the staging memory holds."""
        self._device.wait_for_event(self._copied)  # between steps long past: the last one was awaited
        start, changed = 0, {}
        while self._queue and start + self._queue[0][0].expert_bytes <= len(self._staging):
            layer, come, go = self._queue.popleft()
            self._move(layer, come, int(layer.slots[go]), start)
            layer.slots[come], layer.slots[go] = layer.slots[go], -1
            start += layer.expert_bytes
            changed[layer.number] = layer
            self.moved += 1
        for layer in changed.values():
            self._send_table(layer)
        self._device.record_event(self._copied)
        self._due = time.monotonic() + start / BYTES_A_SECOND

    def _look(self) -> None:
        """Queues what is worth most, and no more than is moved until the next look."""
        moves = []
        for layer in self._layers.values():
            if layer.stacks:
                layer.used *= _DECAY
                layer.used += _take_counts(layer)
                moves += [(gain, layer, come, go) for gain, come, go in layer.swaps()]
        moves.sort(key=lambda swap: -swap[0])
        room = EVERY * len(self._staging)
        for _, layer, come, go in moves:
            room -= layer.expert_bytes
            if room >= 0:
                self._queue.append((layer, come, go))
        if time.monotonic() - self._saved > _SAVING_SECONDS:
            self._saved = time.monotonic()
            _save(self._path, self._layers, self._experts)

    def _move(self, layer: SharedLayer, expert: int, slot: int, start: int) -> None:
        for stack in layer.stacks:
            staged = self._staging.ctypes.data + start
            ctypes.memmove(staged, stack.host + expert * stack.expert_bytes, stack.expert_bytes)
            self._device.copy(stack.device + slot * stack.expert_bytes, staged, stack.expert_bytes)
            start += stack.expert_bytes

    def _send_table(self, layer: SharedLayer) -> None:
        row = self._pinned[layer.number]
        row[: len(layer.slots)] = layer.slots
        self._device.copy(self._tables + layer.number * self._row_bytes, row.ctypes.data, row.nbytes)


def _save(path: Path, layers: Mapping[str, SharedLayer], experts: Mapping[str, int]) -> None:
    """Beside what the file says of the model's other layers, which may be another GPU's."""
    if used := {name: layer.used for name, layer in layers.items() if layer.used.any()}:
        write_counts(path, read_counts(path, experts) | used)


def _take_counts(layer: SharedLayer) -> NDArray[np.uint32]:
    """How often each expert was chosen since the last time."""
    counts = np.zeros(len(layer.slots), np.uint32)
    take = library_function("trigraph_take_expert_counts")
    if take is not None:
        take(ctypes.c_void_p(layer.stacks[0].host), ctypes.c_int64(len(counts)), ctypes.c_void_p(counts.ctypes.data))
    return counts
