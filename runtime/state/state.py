"""State of all sequences: the tensors that the graphs update in place, and who owns which slot and page."""

from __future__ import annotations

from collections import abc
from typing import Any

import numpy as np

from trigraph.exporter.package.state_tensors import StateTensor
from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.device import HOST, Device
from trigraph.runtime.device.exchange import Memory
from trigraph.runtime.device.memory import explained_shortage
from trigraph.runtime.state.memory_ahead import MemoryAhead
from trigraph.runtime.state.pool import Pool
from trigraph.runtime.state.sequence import RELEASED, Sequence, StateLimits
from trigraph.runtime.state.sizes import StateSizes


class StateBuffer:
    """Memory of one state tensor: the array that a step reads, and the one it writes, which may be the same."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, double_buffered: bool, device: Device) -> None:
        self.arrays: tuple[Memory, ...] = tuple(device.zeros(shape, dtype) for _ in range(1 + double_buffered))
        self._device = device
        self.read_index = 0
        """Index of the array that the next step reads."""

    @property
    def current(self) -> Memory:
        """What the last step left."""
        return self.arrays[self.read_index]

    def copy_row(self, source: int, target: int) -> None:
        """Copies a row of what the last step left to another one."""
        self._device.copy_row(self.current, source, target)

    @property
    def on_host(self) -> tuple[Memory, ...]:
        """The arrays that the system gives memory to, row by row, at their first use."""
        return self.arrays if self._device.is_host else ()

    @property
    def row_bytes(self) -> int:
        """Bytes of a slot or page."""
        return sum(array.nbytes // array.shape[0] for array in self.arrays)

    @property
    def write_index(self) -> int:
        """Index of the array that the next step writes."""
        return (self.read_index + 1) % len(self.arrays)


class State:
    """The tensors by name, allocated once, and who holds which slots and pages.

    Memory is touched when it is first used, lowest numbers first: a large budget costs nothing until it is filled.
    """

    def __init__(
        self,
        tensors: tuple[StateTensor, ...],
        limits: StateLimits,
        sizes: StateSizes,
        device: Device | abc.Mapping[str, Device] = HOST,
        *,
        double_buffered: bool = False,
    ) -> None:
        """`double_buffered`: a step writes other buffers than it reads, as ONNX Runtime's own operators need it.

        `device`: where they lie, or by name where each does.
        """
        self.limits, self.sequences = limits, sizes.sequences
        self.slots = Pool(sizes.slots, "state slots", "sequences")
        self.pages = Pool(sizes.pages, "KV pages", "kv_memory")
        counts = sizes.counts
        needed = {
            rows: (1 + double_buffered) * sum(count * tensor.item_bytes for tensor in tensors if tensor.dims[0] == rows)
            for rows, count in counts.items()
        }
        what = " and ".join(f"{size / 1e6:,.0f} MB of {rows}" for rows, size in needed.items())
        with explained_shortage(
            f"the state, {what},", sum(needed.values()), "load with a smaller context, kv_memory or fewer sequences"
        ):
            self.buffers: abc.Mapping[str, StateBuffer] = {
                tensor.name: StateBuffer(
                    tuple(counts[dim] if isinstance(dim, str) else dim for dim in tensor.dims),
                    np.dtype(tensor.dtype),
                    double_buffered=double_buffered,
                    device=device if isinstance(device, Device) else device[tensor.name],
                )
                for tensor in tensors
            }
        self.recurrent = {tensor.name: self.buffers[tensor.name] for tensor in tensors if tensor.dims[0] == "slots"}
        """The ones of `buffers` with a row for each slot."""
        self.paged = {tensor.name: self.buffers[tensor.name] for tensor in tensors if tensor.dims[0] == "pages"}
        """The ones of `buffers` with a row for each KV page."""
        self.rings = [self.recurrent[tensor.name] for tensor in tensors if tensor.ring]
        """The ones of `recurrent` of which a step writes some rows only."""
        self.ring = max((tensor.ring for tensor in tensors), default=0)
        """Positions that a slot of them holds; 0 without any."""
        self.slot_bytes = sum(buffer.row_bytes for buffer in self.recurrent.values())
        self.page_bytes = sum(buffer.row_bytes for buffer in self.paged.values())
        on_host = [array for buffer in self.recurrent.values() for array in buffer.on_host]
        self.slots_ahead = MemoryAhead(self.slots, on_host)

    @property
    def tensors(self) -> abc.Mapping[str, Memory]:
        """What the last steps left, by name."""
        return {name: buffer.current for name, buffer in self.buffers.items()}

    @property
    def columns(self) -> abc.Mapping[str, int]:
        """The widths of page tables and ring tables, by their names in the graph contract."""
        return {"P": self.limits.pages, "Q": -(-self.limits.context // self.ring) if self.ring else 0}

    def new(self) -> Sequence:
        """An empty sequence."""
        return Sequence(self.slots.take(), self.limits)

    def fork(self, parent: Sequence) -> Sequence:
        """A second sequence with the same tokens, pending ones included.

        The slot is shared until one of the two steps; full pages are shared for good, those still written are copied.
        """
        return self._share(parent, parent.page_count, pending=True)

    def checkpoint(self, parent: Sequence) -> Sequence:
        """A fork with the committed tokens alone: what is pending, drafted or reserved behind them stays away."""
        return self._share(parent, self.pages_of(parent.length), pending=False)

    def hold(self, sequence: Sequence) -> Sequence:
        """What `sequence` has committed, to be read alone: takes no room, and keeps slot and pages until released."""
        return self._share(sequence, self.pages_of(sequence.length), pending=False, copies=False)

    def _share(self, parent: Sequence, page_count: int, *, pending: bool, copies: bool = True) -> Sequence:
        """A copy of the parent that shares its slot and as many of its pages; `copies`: not those still written."""
        if parent.slot == RELEASED:
            raise TrigraphError("the sequence was released; it cannot be forked")
        # Entries of the MTP head may be missing in full pages: whoever adds them writes what any other one would.
        settled = parent.length // self.limits.page_size if copies else page_count
        self.pages.require(page_count - settled)
        child = parent.copy(self.slots.share(parent.slot), self.limits, pending=pending)
        numbers = parent.pages[:page_count].tolist()
        pages = [*map(self.pages.share, numbers[:settled]), *(self.pages.take() for _ in numbers[settled:])]
        for source, target in zip(numbers[settled:], pages[settled:], strict=True):
            for buffer in self.paged.values():
                buffer.copy_row(source, target)
        for page in pages:
            child.add_page(page)
        return child

    def pages_to_copy(self, parent: Sequence) -> int:
        """Free pages that a checkpoint of `parent`, or a fork of such a one, takes."""
        return int(parent.length % self.limits.page_size > 0)

    def pages_of(self, length: int) -> int:
        """Pages that hold so many tokens."""
        return -(-length // self.limits.page_size)

    def release(self, sequence: Sequence) -> None:
        """Gives back the slot and pages of a sequence, which cannot be used any more; again changes nothing."""
        if sequence.slot == RELEASED:
            return
        for slot in {sequence.slot, sequence.next_slot} - {RELEASED}:
            self.slots.drop(slot)
        for page in sequence.pages[: sequence.page_count].tolist():
            self.pages.drop(page)
        sequence.released()

    def reserve(self, sequences: abc.Sequence[Sequence], lengths: abc.Sequence[int]) -> None:
        """Makes sure that positions 0 .. lengths[i] - 1 have pages: all of them or, with a TrigraphError, none."""
        size = self.limits.page_size
        for sequence, length in zip(sequences, lengths, strict=True):
            if length > size * sequence.page_count:
                break
        else:
            return
        counts = self._missing_pages(sequences, lengths)
        self.pages.require(sum(counts))
        for sequence, count in zip(sequences, counts, strict=True):
            for _ in range(count):
                sequence.add_page(self.pages.take())

    def room(self, sequences: abc.Sequence[Sequence], lengths: abc.Sequence[int]) -> tuple[int, int]:
        """Slots and pages that a step would take that brings the sequences to these lengths."""
        return self._shared_slots(sequences), sum(self._missing_pages(sequences, lengths))

    def _missing_pages(self, sequences: abc.Sequence[Sequence], lengths: abc.Sequence[int]) -> list[int]:
        """For each sequence."""
        return [
            max(0, self.pages_of(length) - sequence.page_count)
            for sequence, length in zip(sequences, lengths, strict=True)
        ]

    def _shared_slots(self, sequences: abc.Sequence[Sequence]) -> int:
        """How many of the sequences cannot write the slot that they read, and have no other one yet."""
        return sum([self.slots.references(seq.slot) > 1 for seq in sequences if seq.next_slot == RELEASED])

    def check_room(self, sequences: abc.Sequence[Sequence], lengths: abc.Sequence[int]) -> None:
        """Reserves pages. Raises TrigraphError when these, or slots for the sequences to write, are not free."""
        if len(sequences) > 1 and len(set(map(id, sequences))) < len(sequences):
            raise TrigraphError("a step takes each sequence once")
        self.slots.require(self._shared_slots(sequences))
        self.reserve(sequences, lengths)

    def slots_out(self, sequences: abc.Sequence[Sequence], lengths: abc.Sequence[int]) -> list[int]:
        """The slot that each sequence of a step writes: its own, or a new one while others still read that.

        Reserves pages too. Takes all that the step needs or, with a TrigraphError, nothing.
        """
        self.check_room(sequences, lengths)
        self._own_slots(sequences)
        return [sequence.slot_to_write for sequence in sequences]

    def own_rings(self, sequences: abc.Iterable[Sequence]) -> None:
        """Before a step that writes rings alone: has each sequence write some that nobody else reads."""
        if self.rings:
            self._own_slots(sequences)

    def _own_slots(self, sequences: abc.Iterable[Sequence]) -> None:
        for sequence in sequences:
            if sequence.next_slot == RELEASED and self.slots.references(sequence.slot) > 1:
                sequence.next_slot = self.slots.take()
                for ring in self.rings:  # a step writes all of the other tensors
                    ring.copy_row(sequence.slot, sequence.next_slot)

    def move(self, sequences: abc.Iterable[Sequence], slots: abc.Iterable[int]) -> None:
        """After a step: the sequences live in the slots that `slots_out` gave."""
        for sequence, slot in zip(sequences, slots, strict=True):
            if slot != sequence.slot:
                self.slots.drop(sequence.slot)
                sequence.moved(slot)

    def abandon(self, sequences: abc.Iterable[Sequence], slots: abc.Iterable[int]) -> None:
        """After a step that failed: its sequences cannot go on, and the new slots are free again."""
        for sequence, slot in zip(sequences, slots, strict=True):
            sequence.damaged = True
            if slot != sequence.slot:
                self.slots.drop(slot)
                sequence.moved(sequence.slot)

    def nbytes(self) -> int:
        """Bytes of all state tensors, touched or not."""
        return sum(array.nbytes for buffer in self.buffers.values() for array in buffer.arrays)
