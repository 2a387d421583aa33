"""Drafts by n-grams, against a search through the whole text."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from trigraph.runtime.drafting.ngram import CANDIDATES, LONGEST, NGRAM, Match, NgramIndex


def searched(tokens: Sequence[int], token: int, most: int, window: int) -> Match:
    """The same by looking at every place."""
    text = [*tokens, token]
    suffix = text[-NGRAM:]
    if len(suffix) < NGRAM:
        return Match([], 0)
    places = [
        end for end in range(NGRAM, len(text)) if text[end - NGRAM : end] == suffix and end > len(tokens) - window
    ]
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
    window=st.sampled_from([16, 40, 1000]),
)
def test_matches_are_those_of_a_search(text: list[int], cuts: list[int], most: int, window: int) -> None:
    """Whenever a text is asked for: each token of it, or after jumps."""
    index = NgramIndex(window)
    for length in sorted({cut for cut in cuts if cut < len(text)} | {len(text) - 1}):
        tokens, token = text[:length], text[length]
        assert index.find(tokens, token, most) == searched(tokens, token, most, window)


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


def test_memory_is_bounded() -> None:
    window = 64
    index = NgramIndex(window)
    text = [i * 7919 % 1009 for i in range(5000)]
    for length in range(1, len(text)):
        index.find(text[:length], text[length], 3)
    assert len(index._latest) <= window + 1
    assert len(index._earlier) == window


def test_images_are_not_drafted() -> None:
    """Their tokens are negative: drafts end in front of them, and go on with what else follows."""
    index, shown = NgramIndex(), [-5, -6, -7]
    assert index.find([1, 2, 3, 4, *shown, 8, 9, 1, 2], 3, 5) == Match([4], 3)
    index = NgramIndex()
    assert index.find([1, 2, 3, *shown, 8, 9, 1, 2], 3, 5) == Match([], 3)
    index = NgramIndex()
    assert index.find([*shown, 8, 9, 7, 4, 5, *shown, 8], 9, 5) == Match([7, 4, 5], 5)
