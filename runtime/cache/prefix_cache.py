"""Sequences that later prompts go on from, found by their tokens."""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections import Counter, abc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trigraph.runtime.cache.cache_stats import CacheStats
from trigraph.runtime.cache.checkpoint import Checkpoint
from trigraph.runtime.cache.disk_tier import DiskTier
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.cache.radix_tree import Node, RadixTree, TreeMatch
from trigraph.runtime.cache.session_file import SessionFile, Turn, save_session
from trigraph.runtime.cache.turns import Turns
from trigraph.runtime.execution.results import StepResult
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.images.prompt import PlacedImage, same_images
from trigraph.runtime.state.pool import Pool
from trigraph.runtime.state.sequence import Sequence

MIN_GAIN = 16  # tokens that a checkpoint saves at the least, to be worth its slot and a prefill in two pieces
_SOON = 64  # where one page is short, a 64th of all will be soon
_MAX_SAVED = 4  # checkpoints in a session file

Images = abc.Sequence[PlacedImage]
_Frees = Callable[[Node["_Checkpoint"]], int]  # slots or pages that nobody else has


class Found(NamedTuple):
    """Where a prompt starts."""

    sequence: Sequence
    """The caller's own: it holds a beginning of the prompt, or nothing."""
    row: StepResult | None = None
    """The result of its last token, where that is the last one of the prompt; read-only."""
    parted: int | None = None
    """Length at which the prompt parts from others, to be computed on its own and given to `insert`."""


@dataclass(eq=False)
class _Checkpoint:
    sequence: Sequence
    row: StepResult | None
    used: int  # number of the latest prompt that began with it
    resumed: int  # number of the latest prompt that went on from just here, or made it
    fresh: bool = True  # none went on from just here


class PrefixCache:
    """Checkpoints of sequences, in a tree of their tokens. All calls are made under `steps.lock`.

    A checkpoint is a fork that takes no steps: its slot is shared until the other one steps, its full pages are shared
    for good. Where slots or pages are short, the checkpoint of lowest value goes, see `_value`.
    """

    def __init__(self, steps: Steps, disk: DiskTier | None = None) -> None:
        self.stats = CacheStats()
        self._disk = disk
        self._steps, self._state = steps, steps.state
        self._tree: RadixTree[_Checkpoint] = RadixTree()
        self._turns = Turns()
        self._slots: Counter[int] = Counter()  # how many checkpoints have each slot
        # A host's own steps find room as requests do. Weak, as the state would refer to itself until it is collected.
        make_room = weakref.WeakMethod(self.make_room)
        self._state.slots.reclaim = lambda count: (call := make_room()) and call(count, 0)
        self._state.pages.reclaim = lambda count: (call := make_room()) and call(0, count)

    def __len__(self) -> int:
        """Checkpoints."""
        return sum(1 for _ in self._tree)

    def find(self, prompt: list[int], images: Images = (), *, needs_row: bool = True) -> Found:
        """A sequence for a prompt, in which keys stand in the places of `images`.

        `needs_row`: whether one that holds all of the prompt is of use only with the row that comes after it. Raises
        TrigraphError when no room can be made for it.
        """
        nodes, known = self._match(prompt, images, needs_row)
        self._note_use(prompt, nodes)
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

    def make_room(self, slots: int, pages: int, spared: Node[_Checkpoint] | None = None) -> bool:
        """Evicts checkpoints but `spared` until so many slots and pages are free; whether they are."""
        state = self._state
        wanted = (state.slots, slots, self._frees_slot), (state.pages, pages, self._own_pages)
        return all(self._free(*each, spared) for each in wanted)

    def clear(self) -> None:
        """Gives everything back."""
        for node in [*self._tree]:
            self._steps.release(self._forget(node))

    def load(self, saved: SessionFile) -> None:
        """Takes over the checkpoints of a file; the longest ones, where there is no room for all.

        Raises TrigraphError when the file is damaged.
        """
        checkpoints = [saved.checkpoint(index) for index in range(len(saved.lengths))]  # read before any is evicted
        begun = self._tree.match(saved.tokens[: min(saved.lengths, default=0)]).nodes
        begun = [node for node in begun if _shows(node, saved.images)]
        if begun and not self.make_room(0, self._state.pages_to_copy(_checkpoint(begun[-1]).sequence), begun[-1]):
            return
        base = self._resume(begun[-1]) if begun else None  # what need not be read
        missing = saved.pages - (base.page_count if base else 0)
        while checkpoints and not self.make_room(len(checkpoints), missing + len(checkpoints) - 1):
            checkpoints.pop(0)
        if base is not None and not checkpoints:
            self._steps.release(base)
        for sequence, checkpoint in zip(saved.resume(checkpoints, base), checkpoints, strict=True):
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
        node.value = _Checkpoint(sequence, None, self._turns.now, self._turns.now)
        self._slots[sequence.slot] += 1
        return node

    def _take_row(self, node: Node[_Checkpoint], row: StepResult | None) -> None:
        checkpoint = _checkpoint(node)
        checkpoint.used = checkpoint.resumed = self._turns.now
        if row is not None and checkpoint.row is None:
            checkpoint.row = row.copy()
            for array in checkpoint.row:
                array.flags.writeable = False

    def _resume(self, node: Node[_Checkpoint]) -> Sequence:
        """A fork of a checkpoint; what it has itself, when there is no room for two."""
        checkpoint = _checkpoint(node)
        self._steps.catch_up(checkpoint.sequence)  # once, for all that come
        if self.make_room(0, self._state.pages_to_copy(checkpoint.sequence), node):
            return self._steps.fork(checkpoint.sequence)
        return self._forget(node)

    def _free(self, pool: Pool, count: int, frees: _Frees, spared: Node[_Checkpoint] | None) -> bool:
        """Evicts checkpoints but `spared`, the least valuable ones first, until a pool has so many; whether it has."""
        while (missing := count - pool.free) > 0:
            most = max(missing, pool.size // _SOON)
            useful = [(node, min(freed, most)) for node in self._tree if node is not spared and (freed := frees(node))]
            if useful:
                self._evict(min(useful, key=lambda found: self._value(*found))[0])
            elif self._disk is None or not self._disk.give_way():
                return False
        return True

    def _value(self, node: Node[_Checkpoint], freed: int) -> float:
        """The worth of a checkpoint: the tokens that it saves, by what it frees and how long that is held until then.

        So of pages, which save as many tokens each, those of the conversation go that comes last, from its end. Where
        others are behind a checkpoint, it is for prompts that part just here, and for when they are gone: one of two
        saves the tokens, and old ones become sparse.
        """
        above, checkpoint = self._tree.above(node), _checkpoint(node)
        saved = node.length - (0 if above is None else above.length)
        if node.children:
            return saved / 2 / freed / (1 + self._turns.wait(checkpoint.resumed))
        return saved / freed / (1 + self._turns.wait(checkpoint.used))

    def _evict(self, node: Node[_Checkpoint]) -> None:
        if not node.children:
            self._turns.evicted(_checkpoint(node).sequence.tokens, _checkpoint(node).used)
        self.stats.evictions += 1
        self._steps.release(self._forget(node))

    def _note_use(self, prompt: list[int], nodes: list[Node[_Checkpoint]]) -> None:
        """A prompt comes that begins with these."""
        last = _checkpoint(nodes[-1]) if nodes else None
        self._turns.begin(prompt, nodes[-1].length if nodes else 0, last.used if last and last.fresh else None)
        for node in nodes:
            _checkpoint(node).used = self._turns.now
        if last is not None:
            last.resumed, last.fresh = self._turns.now, False

    def _frees_slot(self, node: Node[_Checkpoint]) -> bool:
        """Whether nobody has the slot but checkpoints."""
        slot = _checkpoint(node).sequence.slot
        return self._state.slots.references(slot) == self._slots[slot]

    def _own_pages(self, node: Node[_Checkpoint]) -> int:
        """Pages that nobody else has: others share those at the beginning."""
        sequence, references = _checkpoint(node).sequence, self._state.pages.references
        pages = sequence.pages[: sequence.page_count]
        return len(pages) - bisect_left(pages, True, key=lambda page: references(int(page)) == 1)

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
