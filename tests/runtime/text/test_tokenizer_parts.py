"""Long texts are tokenised in parts: their ids are those of the whole."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from support.fake_engine import END, METADATA
from support.real_vocabulary import SIZES, real_metadata
from trigraph.models.errors import TrigraphError
from trigraph.models.tokenizer import special_tokens, tokenizer_json
from trigraph.runtime.text import cuts
from trigraph.runtime.text.cuts import MOST_UNCUT, PART, Cuts
from trigraph.runtime.text.tokenizer import Tokenizer

# What the regular expressions of pre-tokenizers tell apart, and what NFC joins.
PIECES = [
    *"aZé中ก한ไа1٣९½ \n\r\t\x00\x0b\x85\u00a0\u2028\u3000.,!'\"<>|_-=\u0301\u0338\u3099\u1161",
    *("  ", "\n\n", " \n", "'s", "'Re", "<|im_end|>", "<think>", "</think>", "word", "Hello", "ﬁ", "e\u0301"),
]


@pytest.fixture(scope="module", params=SIZES)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    metadata = real_metadata(request.param)
    return Tokenizer(tokenizer_json(metadata), special_tokens(metadata).stop)


@pytest.mark.slow
def test_parts_have_the_ids_of_the_whole(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "PART", 1)  # cut wherever that can be
    dice, parts = random.Random(13), 0
    for _ in range(4000):
        text = "".join(dice.choices(PIECES, k=dice.randint(1, 30)))
        found = tokenizer.encode(text)
        assert found == tokenizer._tokenizer.encode(text, add_special_tokens=False).ids, repr(text)
        parts += len([*tokenizer._cuts.parts(text)])
    assert parts > 10_000


@pytest.mark.slow
def test_each_character_before_and_after_each_other(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "PART", 0)
    for before in PIECES:
        for after in map(chr, range(128)):
            text = f"x{before}{after}{before}y"
            assert tokenizer.encode(text) == tokenizer._tokenizer.encode(text, add_special_tokens=False).ids, repr(text)


def test_no_cut_is_within_an_added_token() -> None:
    found = Cuts(["<a.b>", "1 2", "c|"])
    text = "<a.b> 1 2 c| x.y"
    assert "".join(found.parts(text)) == text
    for added in ("<a.b>", "1 2", "c|"):
        place = text.index(added)
        cut = [match.end() for match in found._place.finditer(text)]
        assert not any(place < end < place + len(added) for end in cut)


def test_texts_are_cut_every_few_thousand_characters() -> None:
    text = "some words, and 1234567890 digits\n" * 3000
    parts = [*Cuts(["<|im_end|>"]).parts(text)]
    assert "".join(parts) == text and len(parts) == len(text) // PART + 1
    assert all(PART <= len(part) < PART + 50 for part in parts[:-1])


def test_a_text_that_cannot_be_cut() -> None:
    tokenizer = Tokenizer(tokenizer_json(METADATA), [END])
    assert len(tokenizer.encode("a" * MOST_UNCUT)) == MOST_UNCUT
    with pytest.raises(TrigraphError, match="262,144 characters without a space between words, from number 16,385 on"):
        tokenizer.encode("a" * (PART + 1) + " " + "b" * MOST_UNCUT)


def test_ids_beyond_the_most_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer(tokenizer_json(METADATA), [END])
    made: list[int] = []
    parts = Cuts.parts

    def counted(cuts: Cuts, text: str) -> Iterator[str]:
        for part in parts(cuts, text):
            made.append(len(part))
            yield part

    monkeypatch.setattr(Cuts, "parts", counted)
    ids = tokenizer.encode("words " * 2_000_000, most=1000)
    assert len(made) <= 2
    assert 1000 < len(ids) < 1000 + 2 * PART
    assert tokenizer.encode("words", most=5) == [*b"words"]
