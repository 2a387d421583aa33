"""A model that keeps to the graph contract without any arithmetic, and checks that its host does too.

The recurrent "state" is the number of a history, KV pages hold token ids, and the MTP cache (token, hidden) pairs. So
every step can check slots, pages, lengths, accepted counts and hidden states against the text that they stand for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from support.fakes.blocks import FakeBlocks
from trigraph.exporter.package.state_tensors import StateTensor
from trigraph.runtime.device.exchange import Exchange
from trigraph.runtime.execution.sessions import Binding
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.state.sequence import StateLimits
from trigraph.runtime.state.sizes import StateSizes
from trigraph.runtime.state.state import State

History = tuple[int, ...]
Arrays = Mapping[str, np.ndarray]

K = 8
PAGE = 4
HIDDEN = 2  # number of the history up to a token; 1 if the MTP head made it
BOTH = ("prefill", "verify")
TENSORS = (
    StateTensor("gdn.0.state", "float32", ("slots", 1), BOTH),
    StateTensor("gdn.0.window", "float32", ("slots", K), BOTH),
    StateTensor("kv.3.key", "float32", ("pages", PAGE), BOTH),
    StateTensor("mtp.key", "float32", ("pages", PAGE, 2), ("prefill", "draft")),
)
BLOCK_KEY = "draft.0.key"
NOTHING = -1.0


class FakeModel:
    """`next_logits` gives the logits [vocab] after a history; `guess` what the MTP head predicts, and how surely.

    `blocks` drafts beside the head.
    """

    def __init__(
        self,
        vocab: int,
        next_logits: Callable[[History], np.ndarray],
        guess: Callable[[History], tuple[int, float]] | None = None,
        blocks: FakeBlocks | None = None,
    ) -> None:
        self.vocab = vocab
        self.next_logits = next_logits
        self.guess = guess
        self.blocks = blocks
        self.runs: list[tuple[str, list[int]]] = []  # graph, tokens of each sequence
        self.fail = False
        self.watch: Callable[[str, list[list[int]]], object] = lambda graph, tokens: None
        """Called before each run with the graph and the tokens of each sequence; what it raises fails the run."""
        self._histories: list[History] = [()]
        self._numbers: dict[History, int] = {(): 0}

    def steps(
        self, context: int = 64, sequences: int = 4, chunk: int = 512, *, slots: int = 0, pages: int = 0
    ) -> Steps:
        """The steps of this model, with two slots and the pages of a context for each sequence unless given."""
        limits = StateLimits(context, PAGE, K, HIDDEN, max(K, self.blocks.config.block if self.blocks else 0))
        tensors = (*(TENSORS if self.guess else TENSORS[:-1]), *([_block_key(self.blocks)] if self.blocks else []))
        sizes = StateSizes(sequences, slots or 2 * sequences, pages or sequences * limits.pages)
        state = State(tensors, limits, sizes)
        for tensor in state.tensors.values():
            tensor.fill(np.nan)  # nobody may read what nobody wrote
        graphs = {name: FakeGraph(self, name, state, limits) for name in ("prefill", "verify", "draft", "block")}
        draft = graphs["draft"] if self.guess else None
        block = (graphs["block"], self.blocks.config) if self.blocks else (None, None)
        return Steps(graphs["prefill"], graphs["verify"], draft, state, self.vocab, chunk, 0, *block)

    def number(self, history: History) -> int:
        """The number that stands for a history."""
        if history not in self._numbers:
            self._numbers[history] = len(self._histories)
            self._histories.append(history)
        return self._numbers[history]

    def history(self, number: float) -> History:
        """The history that a number stands for."""
        assert not np.isnan(number), "read of a state that was never written"
        return self._histories[int(number)]


@dataclasses.dataclass
class FakeGraph:
    """One graph of a FakeModel."""

    model: FakeModel
    name: str
    state: State
    limits: StateLimits
    bindings: dict[tuple[int, int], Binding] = dataclasses.field(default_factory=dict)
    pieces: int = 1
    exchange: Callable[[dict[str, Any], dict[str, Any]], Exchange] = Exchange

    def bind(self, tokens: int, sequences: int, images: int = 0) -> Binding:
        """See Graph; arrays are poisoned, so that what is not filled in, or read too late, is noticed."""
        shape = tokens, sequences
        if shape not in self.bindings:
            self.bindings[shape] = self._make(tokens, sequences)
        _poison(self.bindings[shape].inputs)
        return self.bindings[shape]

    def _make(self, tokens: int, sequences: int) -> Binding:
        draft = self.name in ("draft", "block")
        inputs: dict[str, Any] = {
            "input_ids": np.zeros(tokens, np.int64),
            "cu_seqlens": np.zeros(sequences + 1, np.int32),
            "past_lens": np.zeros(sequences, np.int32),
            "page_table": np.zeros((sequences, self.limits.pages), np.int32),
        }
        if not draft:
            inputs |= {name: np.zeros(sequences, np.int32) for name in ("accepted", "slots_in", "slots_out")}
        if self.state.ring and self.name != "draft":
            inputs["ring_table"] = np.zeros((sequences, self.state.columns["Q"]), np.int32)
        if self.name == "block" and self.model.blocks is not None:
            return Binding(
                self.exchange(inputs, found := self.model.blocks.outputs(tokens)), lambda: self._run(inputs, found)
            )
        if self.name != "verify":
            inputs["prev_hidden"] = np.zeros((tokens if draft else sequences, HIDDEN), np.float32)
        rows = tokens if self.name == "verify" else sequences
        outputs: dict[str, Any] = {"tokens": np.zeros(rows, np.int64), "hidden": np.zeros((rows, HIDDEN), np.float32)}
        if draft:
            outputs["probability"] = np.zeros(rows, np.float32)
        outputs["logits"] = np.zeros((rows, self.model.vocab), np.float32)
        return Binding(self.exchange(inputs, outputs), lambda: self._run(inputs, outputs))

    def _run(self, inputs: Arrays, outputs: Arrays) -> None:
        for binding in self.bindings.values():
            _poison(binding.outputs)
        bounds = inputs["cu_seqlens"]
        assert bounds[0] == 0
        assert bounds[-1] == len(inputs["input_ids"])
        assert (np.diff(bounds) > 0).all()
        self.model.runs.append((self.name, np.diff(bounds).tolist()))
        if self.model.fail:
            raise RuntimeError("a step failed")
        self.model.watch(self.name, [ids.tolist() for ids in np.split(inputs["input_ids"], bounds[1:-1])])
        if self.name not in ("draft", "block"):
            self._check_slots(inputs["slots_in"].tolist(), inputs["slots_out"].tolist())
        for row in inputs.get("ring_table", ()):
            assert self.state.slots.references(row[0]) == 1, "a step writes a ring that others read"
        committed = []
        for i in range(len(bounds) - 1):
            rows = slice(bounds[i], bounds[i + 1])
            if self.name in ("draft", "block"):
                self._draft(inputs, outputs, i, rows)
            else:
                committed.append(self._trunk(inputs, outputs, i, rows))
        # Written at the end: a step reads all of its slots as they were.
        for slot, (history, window) in zip(inputs.get("slots_out", ()), committed, strict=False):
            self.state.tensors["gdn.0.state"][slot] = self.model.number(history)
            self.state.tensors["gdn.0.window"][slot] = window

    def _check_slots(self, slots_in: list[int], slots_out: list[int]) -> None:
        assert len(set(slots_out)) == len(slots_out), "two sequences write one slot"
        for i, slot in enumerate(slots_out):
            assert slot not in slots_in[:i] + slots_in[i + 1 :], "a slot is written and read by another sequence"

    def _trunk(self, inputs: Arrays, outputs: Arrays, i: int, rows: slice) -> tuple[History, list[float]]:
        tokens = inputs["input_ids"][rows].tolist()
        history = self._committed(inputs, i)
        past, table = int(inputs["past_lens"][i]), inputs["page_table"][i]
        assert len(history) == past, "past_lens is not the length of the text in the slot"
        assert [int(self._at("kv.3.key", table, p)) for p in range(past)] == list(history), "KV is of another text"
        pending = list(tokens) if self.name == "verify" else []
        assert len(pending) <= K
        full = history
        for j, token in enumerate(tokens):
            self._put("kv.3.key", table, past + j, token)
            if self.model.blocks:
                self._block_entry(inputs, i, past + j)[:] = token, self.model.number(full)
            if self.name == "prefill" and self.model.guess:
                before = inputs["prev_hidden"][i] if j == 0 else [self.model.number(full), 0]
                assert self.model.history(before[0]) == full, "prev_hidden is of another token"
                assert before[1] == 0
                self._put("mtp.key", table, past + j, [token, self.model.number(full)])
            full = (*full, token)
            if self.name == "verify":
                self._emit(outputs, rows.start + j, full)
        if self.name == "prefill":
            self._emit(outputs, i, full)
            return full, [NOTHING] * K
        return history, pending + [NOTHING] * (K - len(pending))

    def _committed(self, inputs: Arrays, i: int) -> History:
        slot, accepted = inputs["slots_in"][i], int(inputs["accepted"][i])
        if inputs["past_lens"][i] == 0:
            assert accepted == 0
            return ()
        history = self.model.history(self.state.tensors["gdn.0.state"][slot, 0])
        kept = self.state.tensors["gdn.0.window"][slot][:accepted].tolist()
        assert NOTHING not in kept, "accepted above what is pending"
        return (*history, *map(int, kept))

    def _emit(self, outputs: Arrays, row: int, history: History) -> None:
        outputs["logits"][row] = self.model.next_logits(history)
        outputs["tokens"][row] = outputs["logits"][row].argmax()
        outputs["hidden"][row] = [self.model.number(history), 0]

    def _draft(self, inputs: Arrays, outputs: Arrays, i: int, rows: slice) -> None:
        table, past = inputs["page_table"][i], int(inputs["past_lens"][i])
        full: History = ()
        if self.name == "block" and self.model.blocks is not None:
            for j, token in enumerate(inputs["input_ids"][rows].tolist()):
                self._block_entry(inputs, i, past + j)[:] = token, NOTHING  # of use to nobody
            window = self.model.blocks.config.window
            for p in range(max(0, past + 1 - window) if window else 0, past):
                token, number = self._block_entry(inputs, i, p)
                before = self.model.history(number)
                assert len(before) == p and full in ((), before), "an entry of the drafter's cache is of another text"
                full = (*before, int(token))
            self.model.blocks.draft(full, inputs, outputs, rows)
            return
        for p in range(past):
            token, number = self._at("mtp.key", table, p)
            assert self.model.history(number) == full, "an entry of the head's cache is of another text"
            full = (*full, int(token))
        for j, token in enumerate(inputs["input_ids"][rows].tolist()):
            number, chained = inputs["prev_hidden"][rows.start + j]
            assert self.model.history(number) == full, "the hidden state is of another token"
            assert not chained or rows.stop - rows.start == 1, "a kept entry is made of the head's own hidden state"
            self._put("mtp.key", table, past + j, [token, number])
            full = (*full, token)
        assert self.model.guess is not None
        outputs["tokens"][i], outputs["probability"][i] = self.model.guess(full)
        outputs["logits"][i] = np.where(np.arange(self.model.vocab) == outputs["tokens"][i], 0, -100)
        outputs["hidden"][i] = [self.model.number(full), 1]

    def _block_entry(self, inputs: Arrays, i: int, position: int) -> Any:
        """Where the block drafter's entry of a sequence's position is."""
        table, size = (inputs["ring_table"], self.state.ring) if self.state.ring else (inputs["page_table"], PAGE)
        return self.state.tensors[BLOCK_KEY][table[i][position // size], position % size]

    def _at(self, name: str, table: np.ndarray, position: int) -> Any:
        return self.state.tensors[name][table[position // PAGE], position % PAGE]

    def _put(self, name: str, table: np.ndarray, position: int, value: Any) -> None:
        self.state.tensors[name][table[position // PAGE], position % PAGE] = value


def _block_key(blocks: FakeBlocks) -> StateTensor:
    """Of pages, or of the smallest rings."""
    window, block = blocks.config.window, blocks.config.block
    rows = ("slots", window - 1 + max(block, K)) if window else ("pages", PAGE)
    return StateTensor(BLOCK_KEY, "float32", (*rows, 2), ("prefill", "block", "verify"))


def _poison(arrays: Arrays) -> None:
    for array in arrays.values():
        array.fill(np.nan if array.dtype.kind == "f" else -1)


def chaotic(vocab: int, sharpness: float = 4.0) -> Callable[[History], np.ndarray]:
    """Logits that depend on every token of the history, and on nothing else."""

    def logits(history: History) -> np.ndarray:
        seed = np.random.SeedSequence([len(history), *history])
        return (sharpness * np.random.default_rng(seed).standard_normal(vocab)).astype(np.float32)

    return logits


def mostly_right(
    next_logits: Callable[[History], np.ndarray], wrong_every: int = 3
) -> Callable[[History], tuple[int, float]]:
    """A head that predicts the most likely token, except after about one history in `wrong_every`."""

    def guess(history: History) -> tuple[int, float]:
        best = int(next_logits(history).argmax())
        wrong = hash(history) % wrong_every == 0
        return ((best + 1) % len(next_logits(history)), 0.3) if wrong else (best, 0.9)

    return guess
