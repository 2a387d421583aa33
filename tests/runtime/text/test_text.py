"""Text in and out: byte-exact streaming, and stop strings."""

import json
import random
import time
import tracemalloc
from pathlib import Path

import pytest

from support.fakes.engine import END, METADATA, THINK
from trigraph.models.errors import TrigraphError
from trigraph.models.gguf_file import GGUFFile
from trigraph.models.tokenizer import tokenizer_json
from trigraph.runtime.text.stop_strings import StopStrings
from trigraph.runtime.text.tokenizer import Detokenizer, Tokenizer

TEXT = "naïve 日本語 👩‍👩‍👧 ﬁ\u0301 \x00\r\n\ttab"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(tokenizer_json(METADATA), [END])


def test_a_character_appears_with_its_last_token(tokenizer: Tokenizer) -> None:
    ids = list("日".encode())
    stream = Detokenizer(tokenizer)
    assert [stream.push(token) for token in ids] == ["", "", "日"]
    assert stream.flush() == ""


def test_text_that_ends_within_a_character_is_marked(tokenizer: Tokenizer) -> None:
    stream = Detokenizer(tokenizer)
    assert [stream.push(token) for token in (*b"a\xe6\x97", *b"b")] == ["a", "", "", "\ufffdb"]
    assert stream.push(0xF0) + stream.flush() == "\ufffd"


def test_control_tokens_are_silent_and_others_stand_for_themselves(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<think>a<|end|>")
    assert ids == [THINK, ord("a"), END]
    assert tokenizer.decode(ids) == "<think>a"


def test_texts_can_be_encoded_to_the_byte(tokenizer: Tokenizer) -> None:
    for text in ("cafe\u0301", "a<|end|>b", TEXT):
        assert bytes(tokenizer.encode_exactly(text)) == text.encode()
    assert tokenizer.encode_exactly("<think>a") == [THINK, ord("a")]
    assert tokenizer.encode("e\u0301<|end|>") == [*"é".encode(), END], "the tokenizer itself was changed"
    assert tokenizer.control_ids == [END]


def test_streamed_text_is_that_of_the_tokenizers_package(tiny_gguf: Path) -> None:
    json_text = tokenizer_json(GGUFFile.open(tiny_gguf).metadata)
    tokenizer = Tokenizer(json_text)
    assert tokenizer.decode(tokenizer.encode(TEXT)) == tokenizer._tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    chooser = random.Random(1)
    for _ in range(200):
        ids = [chooser.randrange(tokenizer.size) for _ in range(20)]
        assert tokenizer.decode(ids) == tokenizer._tokenizer.decode(ids)


def test_spelled_ids_are_the_text_that_was_encoded(tokenizer: Tokenizer) -> None:
    text = "<think>a<|end|>" + TEXT
    assert tokenizer.spell(tokenizer.encode(text)) == text
    assert tokenizer.spell([0xE6, 0x97]) == "\ufffd"
    beginning = Tokenizer(tokenizer_json(METADATA), [END], bos_id=END)
    assert beginning.spell(beginning.encode(text)) == text


def test_a_beginning_token_where_the_model_wants_one() -> None:
    tokenizer = Tokenizer(tokenizer_json(METADATA), [END], bos_id=END)
    assert tokenizer.encode("a") == [END, ord("a")]
    assert tokenizer.encode("") == [END]


def test_bad_input_to_the_tokenizer(tokenizer: Tokenizer) -> None:
    with pytest.raises(TrigraphError, match=r"tokenizer\.json cannot be read"):
        Tokenizer("{}")
    with pytest.raises(TrigraphError, match="token id 999 is not in the vocabulary of 258"):
        tokenizer.decode([999])
    with pytest.raises(TrigraphError, match="not valid Unicode"):
        tokenizer.encode("a\udc80")


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "found"),
    [
        ((), ["a", "b"], ["a", "b"], False),
        (("cd",), ["abc", "x", "cd", "e"], ["ab", "cx", ""], True),
        (("cd",), ["abcde"], ["ab"], True),
        (("aab",), ["a", "a", "a", "b"], ["", "", "a", ""], True),
        (("bcd", "c"), ["ab", "c"], ["a", "b"], True),
        (("xyz", "yq"), ["xy", "q"], ["", "x"], True),
        (("\n\n",), ["a\n", "b\n", "\n"], ["a", "\nb", ""], True),
    ],
)
def test_stop_strings_across_pieces(stops: tuple[str, ...], pieces: list[str], shown: list[str], found: bool) -> None:
    filter_ = StopStrings(stops)
    assert [filter_.push(piece) for piece in pieces[: len(shown)]] == shown
    assert filter_.found is found


@pytest.mark.parametrize("seed", range(300))
def test_stop_strings_against_a_search_in_the_whole_text(seed: int) -> None:
    dice = random.Random(seed)
    text = "".join(dice.choices("abc", k=40))
    stops = ["".join(dice.choices("abc", k=dice.randint(1, 6))) for _ in range(dice.randint(1, 4))]
    # The one that is complete first counts; of those that end together, the longest.
    ends = [(end, -len(stop)) for stop in stops for end in range(len(text) + 1) if text[:end].endswith(stop)]
    expected = text[: sum(min(ends))] if ends else text
    filter_, shown, rest = StopStrings(stops), "", text
    while rest and not filter_.found:
        size = dice.randint(0, 5)
        shown += filter_.push(rest[:size])
        rest = rest[size:]
        read = text[: len(text) - len(rest)]
        held = [stop[:n] for stop in stops for n in range(len(stop) + 1) if read.endswith(stop[:n])]
        assert filter_.found or shown == read[: len(read) - max(map(len, held))], (
            "more or less is held back than needed"
        )
    assert (shown if filter_.found else shown + filter_.flush()) == expected
    assert filter_.found == bool(ends)


def test_many_stop_strings_cost_no_more_than_one() -> None:
    started = time.thread_time()
    filter_ = StopStrings(f"stop {i} here" for i in range(10_000))
    for _ in range(2000):
        filter_.push(" stop 77")
    assert time.thread_time() - started < 5  # one by one: a minute and more
    assert filter_.push("77 here") == ""
    assert filter_.found


def test_long_stop_strings_take_little_memory() -> None:
    """Each choice of a request has them: of 128, those that a request may have took two gigabytes."""
    dice = random.Random(1)
    stops = ["".join(chr(dice.randrange(0x4E00, 0x9FFF)) for _ in range(1000)) for _ in range(64)]
    tracemalloc.start()
    try:
        filters = [StopStrings(stops) for _ in range(8)]
        assert tracemalloc.get_traced_memory()[0] < 10 << 20
    finally:
        tracemalloc.stop()
    assert filters[-1].push("a" + stops[5] + "b") == "a"


def test_what_a_stop_string_held_back_comes_at_the_end() -> None:
    stops = StopStrings(["end"])
    assert stops.push("the e") == "the "
    assert stops.flush() == "e"
    with pytest.raises(TrigraphError, match="a stop string is empty"):
        StopStrings([""])


def change(path: str, value: object) -> str:
    """The tokenizer's JSON with a value changed; `path` has dots."""
    description = json.loads(tokenizer_json(METADATA))
    *keys, last = path.split(".")
    at = description
    for key in keys:
        at = at[int(key) if isinstance(at, list) else key]
    at[last] = value
    return json.dumps(description)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("pre_tokenizer.pretokenizers.0.pattern", {"Regex": "(a|a)*b"}),
        ("pre_tokenizer", None),
        ("normalizer", {"type": "NFKC"}),
        ("decoder", None),
        ("truncation", {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}),
        ("padding", {"strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "x",
                     "pad_to_multiple_of": None}),
        ("post_processor", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}),
        ("model.merges", [["", "a"], ["b", ""]]),
        ("model.vocab", []),
        ("model", {"type": "WordLevel"}),
    ],
)  # fmt: skip
def test_a_tokenizer_of_a_stranger(path: str, value: object) -> None:
    """Other steps, which could take for ever, and what makes the package panic."""
    with pytest.raises(
        TrigraphError, match=r"tokenizer\.json (cannot be read|splits text in a way that no export does)"
    ):
        Tokenizer(change(path, value))


def test_all_bytes_of_a_vocabulary() -> None:
    odd = ["日本", "a日b", "\u0144", " space", "Ġ\u0143"]  # characters that stand for no byte, but in the last
    tokens = [*METADATA["tokenizer.ggml.tokens"], *odd]
    types = [*METADATA["tokenizer.ggml.token_type"], *[1] * len(odd)]
    metadata = {**METADATA, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    found = Tokenizer(tokenizer_json(metadata), [END]).all_bytes()
    assert found[:END] == [bytes([byte]) for byte in range(256)]
    assert found[END : THINK + 1] == [b"<|end|>", b"<think>"]
    assert found[THINK + 1 :] == [*(text.encode() for text in odd[:4]), b" \xad"]
