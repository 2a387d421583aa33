"""Long texts are tokenised in parts: their ids are those of the whole."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from support.fakes.engine import END, METADATA
from support.models.real_vocabulary import SIZES, real_metadata
from trigraph.models.errors import TrigraphError
from trigraph.models.tokenizer import special_tokens, tokenizer_json
from trigraph.runtime.text import cuts, kept_ids
from trigraph.runtime.text import tokenizer as tokenizer_module
from trigraph.runtime.text.control_names import MARK
from trigraph.runtime.text.cuts import MOST_UNCUT, PART, Cuts
from trigraph.runtime.text.kept_ids import KeptIds
from trigraph.runtime.text.tokenizer import Tokenizer

# What the regular expressions of pre-tokenizers tell apart, and what NFC joins.
PIECES = [
    *"aZé中ก한ไа1٣९½ \n\r\t\x00\x0b\x85\u00a0\u2028\u3000.,!'\"<>|_-=\u0301\u0338\u3099\u1161",
    *"あんァヺー가힣ทะิ้่เ、。「」（）！？“”…—·\u200b\u1680\x1c\x1f",
    *(
        "  ",
        "\n\n",
        " \n",
        "\r\n",
        "\n\u3000",
        "。\n",
        "\u3000\u3000",
        "'s",
        "'Re",
        "<|im_end|>",
        "<think>",
        "</think>",
        "word",
        "Hello",
        "ﬁ",
        "e\u0301",
    ),
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
        for after in (*map(chr, range(128)), *PIECES):
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


SCRIPTS = {
    "Chinese": ("的一是不了人我在有他这为之大来以个中上们", "，。！？；：「」“”…", 40),
    "Japanese": ("のにはをたがでてとしれさある日本語カタカナー", "、。「」！？", 40),
    "Thai": ("กขคงจชซญดตถทนบปผพฟมยรลวสหอะาิีึืุูเแโใไ็่้๊๋์", "", 60),
    "without punctuation": ("的一是不了人我在有他", "", 60),
}


def long_lines(script: str, characters: int, ends: str = "\n") -> str:
    """Random lines of a script, a few of them indented, without a single space."""
    letters, marks, width = SCRIPTS[script]
    dice, lines = random.Random(17), []
    for _ in range(characters // width):
        line = "".join(dice.choices(letters, k=width)) + "".join(dice.choices(marks, k=1) if marks else ())
        lines.append("\u3000" * dice.choice((0, 0, 2)) + line)
    return ends.join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\n\n", "。\n"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_without_spaces(tokenizer: Tokenizer, script: str, ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than what may be uncut, here an eighth of it: the ids are those that the library gives for the whole."""
    monkeypatch.setattr(cuts, "MOST_UNCUT", MOST_UNCUT // 8)
    monkeypatch.setattr(cuts, "PART", PART // 8)
    text = long_lines(script, MOST_UNCUT // 8 + 2_500, ends)
    assert len(text) > cuts.MOST_UNCUT and " " not in text
    assert tokenizer.encode(text) == tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
    parts = [*tokenizer._cuts.parts(text)]
    assert len(parts) > 50 and all(len(part) < cuts.PART + 200 for part in parts)


def test_punctuation_after_a_letter_is_a_place_too() -> None:
    text = "的一是。" * (MOST_UNCUT // 4 + 1)
    parts = [*Cuts([]).parts(text)]
    assert "".join(parts) == text and max(map(len, parts)) <= PART + 4
    with pytest.raises(TrigraphError, match="262,144 characters"):
        list(Cuts(["是。"]).parts(text))


def test_a_text_that_cannot_be_cut() -> None:
    tokenizer = Tokenizer(tokenizer_json(METADATA), [END])
    assert len(tokenizer.encode("a" * MOST_UNCUT)) == MOST_UNCUT
    with pytest.raises(TrigraphError, match="262,144 characters without a space or a line break, from number 4,097 on"):
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


def counted_ids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Characters of each text that is tokenised from now on."""
    made: list[int] = []
    ids = tokenizer_module._ids

    def counting(own: Any, text: str) -> list[int]:
        made.append(len(text))
        return ids(own, text)

    monkeypatch.setattr(tokenizer_module, "_ids", counting)
    return made


def test_a_conversation_that_grows_is_tokenised_from_its_last_part_on(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, made = Tokenizer(tokenizer_json(METADATA), [END]), counted_ids(monkeypatch)
    text = "day 9" + "".join(f"words and {number} numbers\n" for number in range(4000))
    whole = tokenizer.encode(text)
    assert sum(made) == len(text)
    made.clear()
    assert tokenizer.encode(text) == whole and not made
    assert tokenizer.encode(text + "more") == [*whole, *b"more"] and sum(made) < 2 * PART
    made.clear()
    # Another date at its beginning: soon the cuts are where they were.
    assert tokenizer.encode(text.replace("day 9", "day 10"))[6:] == whole[5:] and sum(made) < 4 * PART
    made.clear()
    # Names of control tokens that are text have ids of their own, and parts as well.
    marked = f"<{MARK}|end|>" + text
    assert tokenizer.encode(marked) == [*b"<|end|>", *whole] and sum(made) == len(text) + 7
    made.clear()
    assert tokenizer.encode(marked + "more")[-4:] == [*b"more"] and sum(made) < 2 * PART


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_ids, "_MOST", 2000)
    kept, made = KeptIds(), list[str]()

    def make(text: str) -> list[int]:
        made.append(text)
        return [*text.encode()]

    texts = [letter * 600 for letter in "abcd"]
    for text in (*texts, texts[1], texts[0]):  # the first one was forgotten
        assert [*kept.of(text, make)] == [*text.encode()]
    assert made == [*texts, texts[0]] and kept._characters == sum(map(len, kept._ids)) <= 2000
    for _ in range(2):
        kept.of("short", make)
    assert made[-2:] == ["short", "short"]


@pytest.mark.slow
def test_ids_are_those_of_a_tokenizer_that_keeps_none(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random texts, their beginnings, and changes in their middle; with marked names too."""
    monkeypatch.setattr(cuts, "PART", 40)
    monkeypatch.setattr(kept_ids, "_LEAST", 1)
    monkeypatch.setattr(kept_ids, "_MOST", 3000)
    dice, text = random.Random(5), ""
    pieces = [*PIECES, f"<{MARK}|im_end|>", f"<{MARK}think>"]
    for number in range(2000):
        more = "".join(dice.choices(pieces, k=dice.randint(1, 30)))
        place = dice.randrange(len(text) + 1) if number % 3 else 0
        text = (text[:place] + more + (text[place:] if number % 5 == 0 else ""))[-1500:]
        found = tokenizer.encode(text)
        with monkeypatch.context() as patch:
            patch.setattr(KeptIds, "of", lambda self, text, make: make(text))
            assert tokenizer.encode(text) == found, repr(text)
