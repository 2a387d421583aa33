"""One text, one answer: histories of sequences that hypothesis makes up, against the same texts computed plainly.

Pieces of prompts, verifies with rejected tokens, drafts and forks, in batches of any companions, with one and two
threads and chunks of several sizes: each row, draft, state and KV entry has the bits that it has in a sequence alone.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.marks import slow_after
from support.models.packages import Packages
from support.operators.run import LIBRARY
from support.requests.promise import PlainText, draft_chains, row_bits, sequence_bits
from trigraph.runtime import Engine, load
from trigraph.runtime.state.sequence import Sequence

# geometry, quantisation, activations, keys and values, block drafter: the architectures, every block type
MODELS = [
    ("trained", "Q8_0", "int8", "f16"),
    ("tiny-moe", "Q4_K_M", "int8", "f16"),
    ("trained", "Q8_0", "float32", "f32"),
    ("tiny-dense", "F32", "float32", "f16"),
    ("tiny-dense", "mixed", "int8", "f32"),
    ("tiny-next", "mixed", "int8", "f32"),
    ("tiny-next", "IQ4_XS", "float32", "f16"),
    ("tiny-dense", "Q4_K_M", "int8", "q8_0"),
    ("tiny-streams", "mixed", "int8", "f16"),
    ("tiny-streams", "F32", "float32", "f32"),
    ("trained", "Q8_0", "int8", "f16", "dflash2"),
    ("tiny-moe", "Q4_K_M", "int8", "q8_0", "dflash"),
    ("tiny-next", "mixed", "float32", "f32", "dspark"),
]
MODELS = [model for model in MODELS if len(model) == 4 or LIBRARY == "cpu"]  # a GPU runs no block drafter yet
LENGTH, SEQUENCES, K = 150, 4, 8
WAYS = ((1, 512), (2, 13))  # threads, chunk


Engines = tuple[list[Engine], list[PlainText]]


@pytest.fixture(scope="module", params=slow_after(1, MODELS), ids="-".join)
def engines(packages: Packages, request: pytest.FixtureRequest) -> Iterator[Engines]:
    """An engine for each of WAYS, and the texts as the first one computes them; of one model after the other."""
    geometry, quant, activations, kv_type, *drafter = request.param
    options = dict(activations=activations, kv_type=kv_type, **({"drafter": drafter[0]} if drafter else {}))
    folder = packages(geometry, quant, **options)
    with ExitStack() as stack:
        found = [
            stack.enter_context(
                load(folder, threads=threads, chunk=chunk, context=200, sequences=SEQUENCES + 1, device=LIBRARY)
            )
            for threads, chunk in WAYS
        ]
        yield found, [PlainText(found[0], LENGTH, seed) for seed in range(2)]


@dataclass
class History:
    """Sequences that grow along their texts, checked on the way."""

    engine: Engine
    texts: list[PlainText]
    live: list[tuple[Sequence, PlainText]] = field(default_factory=list)

    def start(self) -> None:
        if len(self.live) < SEQUENCES:
            text = self.texts[len(self.live) % len(self.texts)]
            self.live.append((self.engine.steps.new_sequence(), text))

    def fork(self, number: int) -> None:
        if 0 < len(self.live) < SEQUENCES:
            sequence, text = self.live[number % len(self.live)]
            self.live.append((self.engine.steps.fork(sequence), text))

    def prefill(self, counts: list[int]) -> None:
        members = self._members(counts, LENGTH - 1)
        if members:
            pieces = [text.tokens[seq.length : seq.length + count] for seq, text, count in members]
            result = self.engine.steps.prefill([seq for seq, _, _ in members], pieces)
            assert row_bits(result) == [text.rows[seq.length - 1] for seq, text, _ in members]

    def verify(self, counts: list[int], kept: list[int]) -> None:
        """Of each sequence so many tokens of its text, of which some are kept."""
        members = self._members([min(count, K) for count in counts], LENGTH - 1)
        if members:
            pieces = [text.tokens[seq.length : seq.length + count] for seq, text, count in members]
            result = self.engine.steps.verify([seq for seq, _, _ in members], pieces)
            assert row_bits(result) == [
                row for seq, text, count in members for row in text.rows[seq.length : seq.length + count]
            ]
            for (seq, _, count), keep in zip(members, kept, strict=False):
                self.engine.steps.keep(seq, min(keep, count))

    def reject(self, counts: list[int]) -> None:
        """A verify of other tokens, none of them kept."""
        members = self._members([min(count, K) for count in counts], LENGTH - 1)
        if members:
            pieces = [[7 + i for i in range(count)] for _, _, count in members]
            self.engine.steps.verify([seq for seq, _, _ in members], pieces)
            for seq, _, _ in members:
                self.engine.steps.keep(seq, 0)

    def draft(self, counts: list[int]) -> None:
        members = [member for member in self._members(counts, LENGTH - 1) if member[0].length]
        if members:
            found = draft_chains(
                self.engine, [seq for seq, _, _ in members], [text.tokens[seq.length] for seq, text, _ in members]
            )
            assert found == [text.drafts(seq.length) for seq, text, _ in members]

    def mislead(self, counts: list[int]) -> None:
        """Drafts after a token that the text does not go on with."""
        if members := self._members(counts, LENGTH - 1):
            draft_chains(
                self.engine,
                [seq for seq, _, _ in members],
                [1 + text.tokens[seq.length] // 2 for seq, text, _ in members],
            )

    def check(self) -> None:
        for sequence, text in self.live:
            if sequence.length:
                found, plain = sequence_bits(self.engine, sequence), text.bits(sequence.length)
                assert [name for name in plain if found[name] != plain[name]] == []

    def _members(self, counts: list[int], end: int) -> list[tuple[Sequence, PlainText, int]]:
        """The sequences that take part, and with how many tokens: of none where the count is 0."""
        found = [
            (seq, text, min(count, end - seq.length)) for (seq, text), count in zip(self.live, counts, strict=False)
        ]
        return [member for member in found if member[2] > 0]


def lists(most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, most), min_size=SEQUENCES, max_size=SEQUENCES)


OPERATIONS = st.one_of(
    st.just(("start",)),
    st.tuples(st.just("fork"), st.integers(0, SEQUENCES - 1)),
    st.tuples(st.just("prefill"), lists(60)),
    st.tuples(st.just("verify"), lists(K), lists(K)),
    st.tuples(st.just("reject"), lists(K)),
    st.tuples(st.just("draft"), lists(1)),
    st.tuples(st.just("mislead"), lists(1)),
)


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(way=st.integers(0, len(WAYS) - 1), operations=st.lists(OPERATIONS, min_size=4, max_size=16))
def test_no_history_shows(engines: Engines, way: int, operations: list[tuple[Any, ...]]) -> None:
    found, texts = engines
    history = History(found[way], texts)
    try:
        history.start()
        for name, *arguments in operations:
            getattr(history, name)(*arguments)
        history.check()
    finally:
        for sequence, _ in history.live:
            found[way].steps.release(sequence)


def test_a_prefill_equals_decoding_at_every_length(engines: Engines) -> None:
    """One piece of each length, beside token by token; the recurrence and tiles of rows have no favourite."""
    (engine, *_), (text, *_) = engines
    for length in range(1, LENGTH, 7):
        sequence = engine.steps.new_sequence()
        (row,) = row_bits(engine.steps.prefill([sequence], [text.tokens[:length]]))
        engine.steps.release(sequence)
        assert row == text.rows[length - 1], f"{length} tokens"


def test_every_number_of_tokens_verified_and_kept(engines: Engines) -> None:
    found, texts = engines
    history = History(found[0], texts[:1])
    history.start()
    combinations = [(count, kept) for count in range(1, K + 1) for kept in range(count + 1)]
    for i in np.random.default_rng(1).permutation(len(combinations)).tolist():
        count, kept = combinations[i]
        (history.mislead if i % 3 == 1 else history.draft)([1])
        history.verify([count], [kept])
    assert history.live[0][0].length == sum(kept for _, kept in combinations)
    history.check()
    found[0].steps.release(history.live[0][0])
