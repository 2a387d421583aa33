"""Sequences that later prompts go on from, found by their tokens."""

from __future__ import annotations

import heapq
import itertools
import weakref
from collections import Counter, abc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trigraph.runtime.cache.checkpoint import Checkpoint
from trigraph.runtime.cache.disk_tier import DiskTier
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.cache.radix_tree import Node, RadixTree, TreeMatch
from trigraph.runtime.cache.session_file import SessionFile, Turn, save_session
from trigraph.runtime.execution.results import StepResult
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.images.prompt import PlacedImage, same_images
from trigraph.runtime.state.sequence import Sequence

# Tokens that a checkpoint saves at the least, to be worth its slot and a prefill in two pieces.
MIN_GAIN = 16
_MAX_SAVED = 4  # checkpoints in a session file

Images = abc.Sequence[PlacedImage]


class Found(NamedTuple):
    """Where a prompt starts."""

    sequence: Sequence
    """The caller's own: it holds a beginning of the prompt, or nothing."""
    row: StepResult | None = None
    """Of its last token, where that is the last one of the prompt; read-only."""
    parted: int | None = None
    """Length at which the prompt parts from others, to be computed on its own and given to `insert`."""


@dataclass
class CacheStats:
    """What a cache has done so far."""

    hits: int = 0
    """Prompts that began with a checkpoint."""
    misses: int = 0
    """Prompts that began from nothing."""
    tokens_found: int = 0
    """Tokens of prompts that needed no computing."""
    tokens_missed: int = 0
    evictions: int = 0


@dataclass(eq=False)
class _Checkpoint:
    sequence: Sequence
    row: StepResult | None
    clock: float
    """Of the cache, when this was last used."""
    entry: int = -1
    """Number of its entry in the heap; older ones do not count."""


class PrefixCache:
    """Checkpoints of sequences, in a tree of their tokens. All calls are made under `steps.lock`.

    A checkpoint is a fork that takes no steps: its slot is shared until the other one steps, its full pages are shared
    for good. Where room is short, the one with the lowest value goes: the clock at its last use, plus the tokens to
    compute again from the nearest checkpoint before it, for each byte that this one does not hold; the clock advances
    to the value of what is evicted. (GreedyDual-Size: Cao and Irani, Cost-Aware WWW Proxy Caching Algorithms, 1997.)
    """

    def __init__(self, steps: Steps, disk: DiskTier | None = None) -> None:
        self.stats = CacheStats()
        self._disk = disk
        self._steps, self._state = steps, steps.state
        self._tree: RadixTree[_Checkpoint] = RadixTree()
        self._clock = 0.0
        # A value, at most that of the node's checkpoint now; a number; and a node. See `_Checkpoint.entry`.
        self._heap: list[tuple[float, int, Node[_Checkpoint]]] = []
        self._slots: Counter[int] = Counter()  # how many checkpoints have each slot
        self._numbers = itertools.count()
        # A host's own steps find room as requests do. Weak, as the state would refer to itself until it is collected.
        make_room = weakref.WeakMethod(self.make_room)
        self._state.slots.reclaim = lambda count: (call := make_room()) and call(count, 0)
        self._state.pages.reclaim = lambda count: (call := make_room()) and call(0, count)

    def __len__(self) -> int:
        """Checkpoints."""
        return sum(1 for _ in self._tree)

    @property
    def nbytes(self) -> int:
        """Bytes of the slots, pages and rows that checkpoints hold, those too that running sequences share."""
        kept = [_checkpoint(node) for node in self._tree]
        slots = {checkpoint.sequence.slot for checkpoint in kept}
        pages = {page for each in kept for page in each.sequence.pages[: each.sequence.page_count].tolist()}
        rows = sum(array.nbytes for each in kept for array in each.row or ())
        return len(slots) * self._state.slot_bytes + len(pages) * self._state.page_bytes + rows

    def find(self, prompt: list[int], images: Images = (), *, needs_row: bool = True) -> Found:
        """A sequence for a prompt, in which keys stand in the places of `images`.

        `needs_row`: whether one that holds all of the prompt is of use only with the row that comes after it. Raises
        TrigraphError when no room can be made for it.
        """
        nodes, known = self._match(prompt, images, needs_row)
        if self._disk is not None:
            self._disk.take(prompt, images, nodes[-1].length if nodes else 0, self.load, needs_row=needs_row)
            # Also after a file that was damaged, for which others were evicted.
            nodes, known = self._match(prompt, images, needs_row)
        row = None
        if nodes:
            self.stats.hits += 1
            row = _checkpoint(nodes[-1]).row if nodes[-1].length == len(prompt) else None
            sequence = self._resume(nodes[-1])
        else:
            self.stats.misses += 1
            self.make_room(1, 0)
            sequence = self._steps.new_sequence()
        self.stats.tokens_found += sequence.length
        self.stats.tokens_missed += len(prompt) - sequence.length
        worth = sequence.length + MIN_GAIN <= known < len(prompt)
        return Found(sequence, row, known if worth else None)

    def _match(self, prompt: list[int], images: Images, needs_row: bool) -> TreeMatch[_Checkpoint]:
        """The checkpoints that `prompt` may start from."""
        match = self._tree.match(prompt)
        while match.nodes and not _shows(match.nodes[-1], images):  # to tell images apart takes nine tokens of them
            match.nodes.pop()
        whole = bool(match.nodes) and match.nodes[-1].length == len(prompt)
        if whole and needs_row and _checkpoint(match.nodes[-1]).row is None:
            match.nodes.pop()
        return match

    def peek(self, prompt: list[int], images: Images = (), *, needs_row: bool = True) -> Sequence | None:
        """The checkpoint that `find` would fork; the cache's own."""
        nodes = self._match(prompt, images, needs_row).nodes
        return _checkpoint(nodes[-1]).sequence if nodes else None

    def insert(self, sequence: Sequence, row: StepResult | None, *, ends: bool = False, lasting: bool = True) -> None:
        """Keeps a checkpoint of the sequence's committed tokens, with the row of the last one where it is given.

        Nothing happens where there is no room for it. `ends`: the sequence takes no more steps, which saves copying a
        page. `lasting`: whether it may be worth a file.
        """
        if sequence.damaged or not sequence.length:
            return
        node = self._held(sequence.tokens)
        if node is None:
            if not ends and not self.make_room(0, self._state.pages_to_copy(sequence)):
                return
            node = self._keep(self._state.hold(sequence) if ends else self._state.checkpoint(sequence))
        if not _shows(node, sequence.images):  # another image's, with the same first keys
            return
        self._take_row(node, row)
        if self._disk is not None and lasting:
            self._disk.offer(_checkpoint(node).sequence, _checkpoint(node).row)

    def make_room(self, slots: int, pages: int) -> bool:
        """Evicts checkpoints until so many slots and pages are free; whether they are."""
        return self._make_room(slots, pages, None)

    def clear(self) -> None:
        """Gives everything back."""
        for node in [*self._tree]:
            self._steps.release(self._forget(node))
        self._heap.clear()

    def load(self, saved: SessionFile) -> None:
        """Takes over the checkpoints of a file; the longest ones, where there is no room for all.

        Raises TrigraphError when the file is damaged.
        """
        checkpoints = [saved.checkpoint(index) for index in range(len(saved.lengths))]  # read before any is evicted
        while checkpoints and not self.make_room(len(checkpoints), saved.pages + len(checkpoints) - 1):
            checkpoints.pop(0)
        for sequence, checkpoint in zip(saved.resume(checkpoints), checkpoints, strict=True):
            node = self._held(sequence.tokens)
            if node is None:
                node = self._keep(sequence)
            else:
                self._steps.release(sequence)
            if _shows(node, saved.images):
                self._take_row(node, checkpoint.row)

    def save(self, path: Path, model: ModelIdentity, tokens: list[int], turn: Turn | None = None) -> None:
        """Writes a session file with the checkpoints of beginnings of `tokens`: the shortest and the newest ones.

        `turn`: the conversation that it is of. Raises TrigraphError when it cannot be written.
        """
        nodes = self._tree.match(tokens).nodes
        nodes = [node for node in nodes if _shows(node, _checkpoint(nodes[-1]).sequence.images)]
        if len(nodes) > _MAX_SAVED:
            nodes = [nodes[0], *nodes[1 - _MAX_SAVED :]]
        kept = [_checkpoint(node) for node in nodes]
        logits = [None if each.row is None else each.row.logits[0] for each in kept]
        saved = [Checkpoint.of(self._state, each.sequence, row) for each, row in zip(kept, logits, strict=True)]
        save_session(path, model, self._state, kept[-1].sequence if kept else None, saved, turn)

    def _held(self, tokens: list[int]) -> Node[_Checkpoint] | None:
        """The node with a checkpoint of just these tokens."""
        nodes = self._tree.match(tokens).nodes
        return nodes[-1] if nodes and nodes[-1].length == len(tokens) else None

    def _keep(self, sequence: Sequence) -> Node[_Checkpoint]:
        """Makes `sequence`, which is nobody else's, a checkpoint."""
        node = self._tree.put(sequence.tokens)
        node.value = _Checkpoint(sequence, None, self._clock)
        self._slots[sequence.slot] += 1
        for changed in (node, *self._tree.below(node)):  # these would be computed again from here
            _checkpoint(changed).entry = number = next(self._numbers)
            heapq.heappush(self._heap, (self._value(changed), number, changed))
        return node

    def _take_row(self, node: Node[_Checkpoint], row: StepResult | None) -> None:
        checkpoint = _checkpoint(node)
        checkpoint.clock = self._clock
        if row is not None and checkpoint.row is None:
            checkpoint.row = row.copy()
            for array in checkpoint.row:
                array.flags.writeable = False

    def _resume(self, node: Node[_Checkpoint]) -> Sequence:
        """A fork of a checkpoint; what it has itself, when there is no room for two."""
        checkpoint = _checkpoint(node)
        checkpoint.clock = self._clock
        self._steps.catch_up(checkpoint.sequence)  # once, for all that come
        if self._make_room(0, self._state.pages_to_copy(checkpoint.sequence), node):
            return self._steps.fork(checkpoint.sequence)
        return self._forget(node)

    def _make_room(self, slots: int, pages: int, spared: Node[_Checkpoint] | None) -> bool:
        state = self._state
        while state.slots.free < slots:
            if not self._evict(lambda node: node is not spared and self._frees_slot(node)):
                return False
        while state.pages.free < pages:
            if not self._evict(lambda node: node is not spared and self._own_pages(node) > 0):
                return False
        return True

    def _evict(self, useful: Callable[[Node[_Checkpoint]], bool]) -> bool:
        """Gives up the checkpoint of lowest value among the useful ones; whether there was one."""
        others = []
        try:
            while self._heap:
                value, number, node = heapq.heappop(self._heap)
                if node.value is None or node.value.entry != number:
                    continue
                if not useful(node):
                    others.append((value, number, node))
                elif (now := self._value(node)) > value:
                    heapq.heappush(self._heap, (now, number, node))
                else:
                    self._clock = max(self._clock, value)
                    self.stats.evictions += 1
                    self._steps.release(self._forget(node))
                    return True
            return False
        finally:
            for entry in others:
                heapq.heappush(self._heap, entry)

    def _value(self, node: Node[_Checkpoint]) -> float:
        """The worth of a checkpoint: when it was used last, and the tokens that it holds for its bytes."""
        above, state = self._tree.above(node), self._state
        before = 0 if above is None else above.length
        pages = state.pages_of(node.length) - before // state.limits.page_size
        own = state.slot_bytes + state.page_bytes * pages
        return _checkpoint(node).clock + (node.length - before) / own

    def _frees_slot(self, node: Node[_Checkpoint]) -> bool:
        """Whether nobody has the slot but checkpoints."""
        slot = _checkpoint(node).sequence.slot
        return self._state.slots.references(slot) == self._slots[slot]

    def _own_pages(self, node: Node[_Checkpoint]) -> int:
        """Pages that nobody else has."""
        sequence, shared = _checkpoint(node).sequence, self._state.pages.shared
        return sum(not shared(page) for page in sequence.pages[: sequence.page_count].tolist())

    def _forget(self, node: Node[_Checkpoint]) -> Sequence:
        """Takes a checkpoint out of the tree; its sequence is the caller's."""
        sequence = _checkpoint(node).sequence
        self._slots[sequence.slot] -= 1
        self._tree.drop(node)
        return sequence


def _shows(node: Node[_Checkpoint], images: Images) -> bool:
    """Whether a checkpoint's images are these, as far as it goes."""
    return same_images(_checkpoint(node).sequence.images, images, node.length)


def _checkpoint(node: Node[_Checkpoint]) -> _Checkpoint:
    assert node.value is not None
    return node.value
