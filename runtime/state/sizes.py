"""How much memory state takes: KV pages and slots of recurrent state, each with a budget in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trigraph.exporter.package.state_tensors import StateTensor
from trigraph.models.checks import check
from trigraph.models.errors import TrigraphError
from trigraph.runtime.state.sequence import StateLimits

DEFAULT_SEQUENCES = 8  # where memory is taken when it is used
_FEW_SEQUENCES = 2  # where it is taken at once
_MOST_SEQUENCES = 1024  # a step of so many is far beyond what pays
_LEAST_CONTEXT = 32768  # by default, where the model's own is not shorter
# Of the memory that is free, by default. The rest is for weights that are read again, and for other programs.
_KV_PART, _SLOTS_PART = 0.5, 0.25
_MOST_SLOTS = 256  # by default: of a few megabytes each, and most checkpoints save seconds


@dataclass(frozen=True)
class StateSizes:
    """Sequences that may run at once, and the slots and KV pages of those and of what the prefix cache keeps."""

    sequences: int
    slots: int
    pages: int

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows of the state tensors, by the name of their first dimension."""
        return {"slots": self.slots, "pages": self.pages}

    def nbytes(self, tensors: Iterable[StateTensor]) -> Mapping[str, int]:
        """Bytes of the state tensors by name, in one buffer each."""
        return {tensor.name: self.counts[str(tensor.dims[0])] * tensor.item_bytes for tensor in tensors}


@dataclass(frozen=True)
class Budgets:
    """What a host gives: bytes of KV pages, of checkpoints, and sequences at once. None: chosen by the free memory.

    `share`: how much of that is this engine's to plan with, as others on the machine take the rest.
    """

    sequences: int | None = None
    kv_memory: int | None = None
    checkpoint_memory: int | None = None
    share: float = 1.0

    def context(
        self, tensors: Iterable[StateTensor], most: int, page_size: int, free: int | None, *, at_once: bool
    ) -> int:
        """Tokens of a sequence where nobody says how many: see EngineConfig.context.

        `most`: the model's own. `free`: bytes that state may take, which pages get a part of; None if unknown.
        `at_once`: all sequences' pages are taken when the model is loaded.
        """
        if self.kv_memory is not None:
            room = self.kv_memory
        else:
            room = int(self.share * (free or 0) * _KV_PART) // ((self.sequences or _FEW_SEQUENCES) if at_once else 1)
        held, context = page_size * (room // _bytes(tensors, "pages")), most
        while context > max(held, _LEAST_CONTEXT):
            context //= 2
        return max(context, min(most, _LEAST_CONTEXT))

    def sizes(
        self, tensors: Iterable[StateTensor], limits: StateLimits, free: int | None, buffers: int = 1
    ) -> StateSizes:
        """Numbers of sequences, slots and pages, each in so many buffers, where `free` bytes may be taken bit by bit.

        None: all memory is taken at once, and the least is chosen. Two slots for each sequence are the least: its own,
        and that of the checkpoint that it started from. Where KV memory alone is given, checkpoints take half as much:
        those whose keys are gone serve nobody. Raises TrigraphError when a budget does not hold one context.
        """
        for name in ("sequences", "kv_memory", "checkpoint_memory"):
            if (value := getattr(self, name)) is not None:
                check(name, value, int, lambda found: found >= 1, "1 or more")
        if (self.sequences or 0) > _MOST_SEQUENCES:
            raise TrigraphError(
                f"sequences is {self.sequences}; at most {_MOST_SEQUENCES} requests are computed at once"
            )
        check("memory_share", self.share, float, lambda found: 0 < found <= 1, "above 0 and at most 1")
        free = None if free is None else int(self.share * free)
        slot_bytes, page_bytes = (buffers * _bytes(tensors, rows) for rows in ("slots", "pages"))
        slots = 2 * _FEW_SEQUENCES
        if free is not None:
            slots = min(max(slots, int(free * _SLOTS_PART) // slot_bytes), _MOST_SLOTS)
        sequences = self.sequences or min(slots // 2, DEFAULT_SEQUENCES)
        if self.checkpoint_memory is not None:
            slots = sequences + self.checkpoint_memory // slot_bytes
        elif self.kv_memory is not None:
            kept = min(sequences + int(self.kv_memory * _SLOTS_PART / _KV_PART) // slot_bytes, _MOST_SLOTS)
            slots = max(slots, kept) if free is None else min(slots, kept)
        pages = sequences * limits.pages
        if self.kv_memory is not None:
            pages = self.kv_memory // page_bytes
        elif free is not None:
            pages = min(max(limits.pages, int(free * _KV_PART) // page_bytes), 2 * pages)
        if pages < limits.pages:
            raise TrigraphError(
                f"kv_memory is {self.kv_memory:,} bytes, and a context of {limits.context} tokens takes "
                f"{limits.pages * page_bytes:,}; give as much, or load with a smaller context"
            )
        return StateSizes(sequences, max(slots, 2 * sequences), pages)


def _bytes(tensors: Iterable[StateTensor], rows: str) -> int:
    """The bytes of one slot or page."""
    return max(1, sum(tensor.item_bytes for tensor in tensors if tensor.dims[0] == rows))
