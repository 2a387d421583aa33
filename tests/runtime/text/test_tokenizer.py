"""The tokenizer made from GGUF metadata against llama.cpp's and transformers' own, id for id."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, pre_tokenizers, trainers
from tokenizers import models as tokenizer_models

from support.models.gguf_bytes import Entry
from support.models.random_gguf import changed
from support.oracles.llama import Llama
from trigraph.models.errors import TrigraphError
from trigraph.models.gguf_file import GGUFFile
from trigraph.models.synth.vocabulary import make_vocabulary
from trigraph.models.tokenizer import (
    CONTROL,
    NORMAL,
    USER_DEFINED,
    byte_alphabet,
    chat_template,
    special_tokens,
    tokenizer_json,
)

TEXTS = {
    "digits": "In 1987, 12345 of 3.14159 (or ٣٤٥ and ½²) at 12:45; x1y22z333",
    "contractions": "I'm he'S they'RE we've o'clock can't 'll 'd THEY'LL 's O'SULLIVAN she'llama D'Sa",
    "accents": "Où est passé l'été dernier? Żółć, naïve façade, Ångström",
    "combining marks": "नमस्ते दुनिया हिन्दी สวัสดีชาวโลก ที่นี่ עִבְרִית العَرَبِيَّة q̃x̂ ỹ́",
    "cjk": "敏捷的狐狸跳过了懒狗。今天天气很好,2026年!すばやい狐が犬を飛び越えた。한국어 문장입니다.",
    "emoji": "😀🚀 👍🏽 ❤️ 👨‍👩‍👧‍👦 🇩🇪 1️⃣ ok🙂ok",
    "code": 'def main(a: int) -> None:\n\tif a != 0 and b[1:2]:\n        return {"k": [x**2]}  # <-- here\n\n\n#!end',
    "special": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n<|endoftext|><|im_no|>",
    "special inside words": "a<think>b</think>c <|im_end|> d<|im_end|><|im_end|>",
    "white space": "a  b   c\t\td \t e \n f\n\n\n  g   \n   \nh\u00a0i\u3000j\u2003 k     ",
    "line ends": "one\r\ntwo\r\n\r\n  three\rfour\n\rfive\r\n",
    "punctuation": "...!!! ?? «Ça» — “quoted” … a/b\\c @#$%^&*()_+-=[]{}|;':\",./<>?~`",
    "controls": "bell\x07 zero-width\u200bjoin\u200d mark\ufeff soft\u00adhyphen",
    "empty": "",
}


def _random_texts(count: int) -> Iterator[str]:
    """Texts of random pieces from the above, with every boundary between scripts somewhere."""
    rng = random.Random(7)
    pool = "".join(TEXTS.values())
    for _ in range(count):
        yield "".join(pool[i : i + rng.randrange(1, 5)] for i in (rng.randrange(len(pool)) for _ in range(30)))


def _nfc_texts(random_count: int) -> list[str]:
    return [unicodedata.normalize("NFC", text) for text in (*TEXTS.values(), *_random_texts(random_count))]


def _crossing_merges(count: int) -> list[tuple[str, str]]:
    """Merges learnt without any pre-tokenizer: they cross word, digit and line borders, so that ids depend on every
    split of the pre-tokenizer under test."""
    trained = Tokenizer(tokenizer_models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + count, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    texts = [text for text in TEXTS.values() if "<|" not in text]
    trained.train_from_iterator([text[i : i + 12] for text in texts for i in range(len(text))], trainer)
    return [(left, right) for left, right in json.loads(trained.to_str())["model"]["merges"]]


def _metadata(pre: str) -> dict[str, Any]:
    merges = _crossing_merges(1500)
    tokens = list(dict.fromkeys([*byte_alphabet(), *(left + right for left, right in merges)]))
    special = {
        "<|endoftext|>": CONTROL,
        "<|im_start|>": CONTROL,
        "<|im_end|>": CONTROL,
        "<think>": USER_DEFINED,
        "</think>": USER_DEFINED,
    }
    return {
        "general.architecture": "qwen35",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens + list(special),
        "tokenizer.ggml.token_type": [NORMAL] * len(tokens) + list(special.values()),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.eos_token_id": len(tokens) + 2,
        "tokenizer.ggml.padding_token_id": len(tokens),
    }


@pytest.fixture(scope="module", params=["qwen2", "qwen35"])
def metadata(request: pytest.FixtureRequest) -> dict[str, Any]:
    return _metadata(request.param)


@pytest.fixture(scope="module")
def tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_json(metadata))


def test_same_ids_as_llama_cpp(metadata: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path) -> None:
    def vocabulary(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        for key in [key for key in pairs if key.startswith("tokenizer.")]:
            del pairs[key]
        pairs.update(metadata | {"tokenizer.ggml.token_type": np.array(metadata["tokenizer.ggml.token_type"], "i4")})

    size = len(metadata["tokenizer.ggml.tokens"])
    llama = Llama(changed(tmp_path, vocabulary, vocab=size))
    for text in _nfc_texts(200):  # llama.cpp leaves the normalisation to its caller
        assert tokenizer.encode(text).ids == llama.tokenize(text), text


def test_same_ids_as_transformers(metadata: dict[str, Any], tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    name = {"qwen2": "Qwen2Tokenizer", "qwen35": "Qwen3_5Tokenizer"}[metadata["tokenizer.ggml.pre"]]
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    theirs = getattr(transformers, name)(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]],
    )
    theirs.add_tokens([token for token, kind in zip(tokens, types, strict=True) if kind == USER_DEFINED])
    theirs.add_special_tokens(
        {"additional_special_tokens": [t for t, kind in zip(tokens, types, strict=True) if kind == CONTROL]}
    )
    for text in (*TEXTS.values(), *_random_texts(200), *(unicodedata.normalize("NFD", t) for t in TEXTS.values())):
        assert tokenizer.encode(text).ids == theirs(text, add_special_tokens=False)["input_ids"], text


def test_decoding_restores_the_text(tokenizer: Tokenizer) -> None:
    for text in _nfc_texts(100):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_decoding_skips_control_tokens_only(metadata: dict[str, Any], tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>a<think>b<|im_end|>").ids
    tokens = metadata["tokenizer.ggml.tokens"]
    assert [tokens[i] for i in ids] == ["<|im_start|>", "a", "<think>", "b", "<|im_end|>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<think>b"


def test_pre_tokenizers_differ_on_combining_marks() -> None:
    ids = {pre: Tokenizer.from_str(tokenizer_json(_metadata(pre))).encode("हिन्दी").ids for pre in ("qwen2", "qwen35")}
    assert ids["qwen2"] != ids["qwen35"]


def test_special_tokens(metadata: dict[str, Any]) -> None:
    first = len(metadata["tokenizer.ggml.tokens"]) - 5
    special = special_tokens(metadata)
    assert (special.eos, special.pad, special.bos, special.add_bos) == (first + 2, first, None, False)
    assert special.stop == (first, first + 2)
    assert chat_template(metadata) is None
    assert chat_template({"tokenizer.chat_template": "{{ 1 }}"}) == "{{ 1 }}"


def test_shipped_model(tiny_gguf: Path) -> None:
    metadata = GGUFFile.open(tiny_gguf).metadata
    tokenizer = Tokenizer.from_str(tokenizer_json(metadata))
    text = "It was the best of times."
    assert tokenizer.get_vocab_size() == 2048
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert special_tokens(metadata).eos == 0
    assert special_tokens(metadata).stop == (0, 2)


@pytest.mark.parametrize("pre_tokenizer", ["qwen2", "qwen35"])
def test_synthetic_vocabulary(pre_tokenizer: str) -> None:
    vocabulary = make_vocabulary(2000, pre_tokenizer)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre_tokenizer,
        "tokenizer.ggml.tokens": vocabulary.tokens,
        "tokenizer.ggml.token_type": vocabulary.types,
        "tokenizer.ggml.merges": vocabulary.merges,
    }
    tokenizer = Tokenizer.from_str(tokenizer_json(metadata))
    text = "The quick brown fox; 敏捷的狐狸 👍🏽"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text)
    assert len(set(vocabulary.tokens)) == len(vocabulary.types) == 2000


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokenizer.ggml.pre", "llama-bpe", "tokenizer.ggml.pre is 'llama-bpe'"),
        ("tokenizer.ggml.pre", None, "tokenizer.ggml.pre is None"),
        ("tokenizer.ggml.pre", ["qwen35"], "tokenizer.ggml.pre"),
        ("tokenizer.ggml.model", "llama", "tokenizer.ggml.model is 'llama'"),
        ("tokenizer.ggml.tokens", None, "tokenizer.ggml.tokens is missing"),
        ("tokenizer.ggml.tokens", [1, 2], "array of strings"),
        ("tokenizer.ggml.tokens", "abc", "array of strings"),
        ("tokenizer.ggml.tokens", ["a", "a"], "'a' twice"),
        ("tokenizer.ggml.tokens", ["a", "b"], "no token for byte 0x00"),
        ("tokenizer.ggml.token_type", [1], "one per token"),
        ("tokenizer.ggml.token_type", 3, "one per token"),
        ("tokenizer.ggml.merges", ["ab"], "entry 0 is 'ab'"),
        ("tokenizer.ggml.merges", ["a zzzz"], "entry 0 is 'a zzzz'"),
        ("tokenizer.ggml.merges", None, "tokenizer.ggml.merges is missing"),
    ],
)
def test_refused(key: str, value: object, message: str) -> None:
    metadata = _metadata("qwen35")
    if value is None:
        del metadata[key]
    else:
        metadata[key] = value
    if key == "tokenizer.ggml.tokens":
        del metadata["tokenizer.ggml.token_type"]
    with pytest.raises(TrigraphError, match=message) as error:
        tokenizer_json(metadata)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("eos_token_id", 10**6),
        ("eos_token_id", -2),
        ("bos_token_id", "x"),
        ("add_bos_token", 1),
        ("add_bos_token", True),
    ],
)
def test_refused_special_ids(key: str, value: object) -> None:
    with pytest.raises(TrigraphError, match=f"tokenizer.ggml.{key}"):
        special_tokens({**_metadata("qwen35"), f"tokenizer.ggml.{key}": value})


def test_refused_chat_template() -> None:
    with pytest.raises(TrigraphError, match=r"tokenizer.chat_template is a list"):
        chat_template({"tokenizer.chat_template": ["x"]})
