"""Drafts by n-grams, against a search through the whole text."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trigraph.runtime.drafting import ngram
from trigraph.runtime.drafting.ngram import CANDIDATES, LONGEST, NGRAM, Match, NgramIndex


def searched(tokens: Sequence[int], token: int, most: int) -> Match:
    """The same by looking at every place."""
    text = [*tokens, token]
    suffix = text[-NGRAM:]
    if len(suffix) < NGRAM:
        return Match([], 0)
    places = [end for end in range(NGRAM, len(text)) if text[end - NGRAM : end] == suffix]
    best = Match([], 0)
    for end in sorted(places, reverse=True)[:CANDIDATES]:
        length = max(n for n in range(NGRAM, min(LONGEST, end) + 1) if text[end - n : end] == text[len(text) - n :])
        if length > best.length:
            longer = list(text)
            for i in range(most):
                longer.append(longer[end + i])
            best = Match(longer[len(text) :], length)
    return best


@settings(max_examples=300, deadline=None)
@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=120),
    cuts=st.lists(st.integers(0, 120), max_size=12),
    most=st.integers(1, 9),
    sizes=st.sampled_from([(16, 4), (40, 40), (1000, 20), (1000, 1000)]),
    mask=st.sampled_from([ngram._MASK, 3]),  # with which most keys are the same
)
def test_matches_are_those_of_a_search(
    text: list[int], cuts: list[int], most: int, sizes: tuple[int, int], mask: int
) -> None:
    """Whenever a text is asked for: each token of it, or after jumps; of a jump beyond a segment all is known later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram, "SEGMENT", sizes[0])
        patch.setattr(ngram, "_FEW", sizes[1])
        patch.setattr(ngram, "_MASK", mask)
        index = NgramIndex()
        for length in sorted({cut for cut in cuts if cut < len(text)} | {len(text) - 1}):
            tokens, token = text[:length], text[length]
            for _ in range(length // sizes[0]):
                index.find(tokens, token, most)
            assert index.find(tokens, token, most) == searched(tokens, token, most)


def test_what_lies_far_back_is_found() -> None:
    """100,000 tokens before; no call takes in more than a segment and some."""
    text = np.random.default_rng(0).integers(0, 150_000, 140_000).tolist()
    text[-20:] = text[30_000:30_020]
    index, sizes = NgramIndex(), [0]
    for _ in range(6):
        match = index.find(text[:-1], text[-1], 8)
        sizes.append(index._size)
    assert match == Match(text[30_020:30_028], LONGEST)
    assert sizes[-1] == len(text) - 1 and max(np.diff(sizes)) <= 33_280


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), period=st.integers(1, 20))
def test_a_repetition_goes_on(seed: int, period: int) -> None:
    pattern = [(seed >> (i % 7)) * 31 + i for i in range(period)]
    text = (pattern * 30)[: 3 * period + 5]
    match = NgramIndex().find(text[:-1], text[-1], 25)
    assert match.drafts == (pattern * 60)[len(text) : len(text) + 25]


def test_the_longest_match_wins_and_then_the_latest() -> None:
    text = [9, 1, 2, 3, 50, 7, 1, 2, 3, 60, 7, 1, 2, 3, 61, 8, 1, 2, 3, 70, 7, 1, 2]
    assert NgramIndex().find(text, 3, 1) == Match([61], 4)


def test_memory_is_linear() -> None:
    """Eight bytes a token, and a dictionary of what came lately."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram, "SEGMENT", 64)
        index = NgramIndex()
        text = [i * 7919 % 1009 for i in range(1500)]
        for length in range(1, len(text)):
            index.find(text[:length], text[length], 3)
    assert len(index._latest) <= 65 and len(index._earlier) <= 64
    assert sum(segment._sorted.nbytes for segment in index._segments) <= 8 * len(text)


def test_images_are_not_drafted() -> None:
    """Their tokens are negative: drafts end in front of them, and go on with what else follows."""
    index, shown = NgramIndex(), [-5, -6, -7]
    assert index.find([1, 2, 3, 4, *shown, 8, 9, 1, 2], 3, 5) == Match([4], 3)
    index = NgramIndex()
    assert index.find([1, 2, 3, *shown, 8, 9, 1, 2], 3, 5) == Match([], 3)
    index = NgramIndex()
    assert index.find([*shown, 8, 9, 7, 4, 5, *shown, 8], 9, 5) == Match([7, 4, 5], 5)
