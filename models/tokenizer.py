"""Tokenizer of a GGUF file as Hugging Face `tokenizers` JSON, its special ids and its chat template.

A GGUF file stores the vocabulary and the merges, but only the *name* of the pre-tokenizer: the regular expressions are
those of transformers' `Qwen2Tokenizer` and `Qwen3_5Tokenizer`. Text is NFC-normalised first, as those classes do
(llama.cpp does not: the ids differ on text that is not in NFC).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from trigraph.models.errors import TrigraphError, quote

# `tokenizer.ggml.token_type`
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5

# Regular expressions by `tokenizer.ggml.pre`
PRE_TOKENIZERS = {
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "qwen35": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}

# Texts that end a turn or a document whatever the metadata call them; a base model's eos is often only one of the two.
# The last three end a piece of code, as models trained on code know it.
_STOP_TEXTS = ("<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
_NO_TOKEN = (-1, 0xFFFFFFFF)  # how some writers say that there is none
_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True)
class SpecialTokens:
    """Token ids with a role. `stop` is sorted: each of its ids ends a completion."""

    bos: int | None
    eos: int | None
    pad: int | None
    stop: tuple[int, ...]
    add_bos: bool


@cache
def byte_alphabet() -> tuple[str, ...]:
    """The printable character that stands for each byte value 0..255 in a byte-level vocabulary (GPT-2's table)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(0x100 + i) for i in range(0x100))
    return tuple(chr(byte) if byte in printable else next(others) for byte in range(0x100))


def tokenizer_json(metadata: Mapping[str, Any]) -> str:
    """The tokenizer as a JSON text for `tokenizers.Tokenizer.from_str`; token ids are those of the GGUF file.

    CONTROL tokens are special (skipped when decoding with `skip_special_tokens`), USER_DEFINED tokens are recognised
    as one token and kept. Raises TrigraphError when the metadata describe a tokenizer that is not one of ours.
    """
    pattern = _pattern(metadata)
    tokens, types = _vocabulary(metadata)
    vocabulary = {text: i for i, text in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        repeated = next(text for i, text in enumerate(tokens) if vocabulary[text] != i)
        raise TrigraphError(f"tokenizer.ggml.tokens holds {quote(repeated)} twice; token texts must be distinct")
    missing = [byte for byte, character in enumerate(byte_alphabet()) if character not in vocabulary]
    if missing:
        raise TrigraphError(
            f"tokenizer.ggml.tokens has no token for byte 0x{missing[0]:02X}; a byte-level vocabulary needs all 256"
        )
    added = [
        {
            "id": i,
            "content": tokens[i],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == CONTROL,
        }
        for i, kind in enumerate(types)
        if kind in (CONTROL, USER_DEFINED) and tokens[i]
    ]
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        **pipeline(pattern),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": _merges(metadata, vocabulary),
        },
    }
    return json.dumps(description, ensure_ascii=False)


def pipeline(pattern: str) -> dict[str, Any]:
    """The parts of a tokenizer's JSON around its vocabulary: how text is split and joined."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
    }


def special_tokens(metadata: Mapping[str, Any]) -> SpecialTokens:
    """The ids with a role. `stop` joins the end-of-sequence, -turn and -message ids and the tokens whose names say that
    they end a text, as llama.cpp does."""
    tokens, types = _vocabulary(metadata)
    ids = {key: _token_id(metadata, f"tokenizer.ggml.{key}", len(tokens)) for key in (*_STOP_KEYS, "bos_token_id")}
    ends = _token_ids(metadata, "tokenizer.ggml.eos_token_ids", len(tokens))
    stop = {ids[key] for key in _STOP_KEYS} | {*ends}
    stop |= {i for i, kind in enumerate(types) if kind == CONTROL and tokens[i] in _STOP_TEXTS}
    add_bos = metadata.get("tokenizer.ggml.add_bos_token", False)
    if not isinstance(add_bos, bool):
        raise TrigraphError(f"tokenizer.ggml.add_bos_token is {quote(add_bos)}; it must be a boolean")
    if add_bos and ids["bos_token_id"] is None:
        raise TrigraphError("tokenizer.ggml.add_bos_token is set, but tokenizer.ggml.bos_token_id is missing")
    return SpecialTokens(
        bos=ids["bos_token_id"],
        eos=next(iter(ends), None) if ids["eos_token_id"] is None else ids["eos_token_id"],
        pad=_token_id(metadata, "tokenizer.ggml.padding_token_id", len(tokens)),
        stop=tuple(sorted(i for i in stop if i is not None)),
        add_bos=add_bos,
    )


def chat_template(metadata: Mapping[str, Any]) -> str | None:
    """The default chat template (Jinja text), or None when the file has none, or an empty one."""
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise TrigraphError(f"tokenizer.chat_template is a {type(template).__name__}; it must be a string")
    return template if template and not template.isspace() else None


def _pattern(metadata: Mapping[str, Any]) -> str:
    model = metadata.get("tokenizer.ggml.model")
    if not isinstance(model, str) or model != "gpt2":
        raise TrigraphError(f"tokenizer.ggml.model is {quote(model)}; only 'gpt2' (byte-level BPE) is supported")
    pre = metadata.get("tokenizer.ggml.pre")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise TrigraphError(
            f"tokenizer.ggml.pre is {quote(pre)}; the known pre-tokenizers are {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return PRE_TOKENIZERS[pre]


def _vocabulary(metadata: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    """Token texts and types, one of each per id."""
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type")
    if types is None:
        return tokens, [NORMAL] * len(tokens)
    kinds = np.asarray(types)
    if kinds.shape != (len(tokens),) or kinds.dtype.kind not in "iu":
        raise TrigraphError(f"tokenizer.ggml.token_type must be an array of {len(tokens)} numbers, one per token")
    return tokens, kinds.tolist()


def _merges(metadata: Mapping[str, Any], vocabulary: Mapping[str, int]) -> list[str]:
    """As they are: `tokenizers` reads them faster than as pairs."""
    merges = _strings(metadata, "tokenizer.ggml.merges")
    for rank, merge in enumerate(merges):
        left, space, right = merge.partition(" ")
        if not (
            space and " " not in right and left in vocabulary and right in vocabulary and left + right in vocabulary
        ):
            raise TrigraphError(
                f"tokenizer.ggml.merges entry {rank} is {quote(merge)}; it must join two tokens into a third one"
            )
    return merges


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if value is None:
        raise TrigraphError(f"the metadata key {key} is missing; the file has no usable tokenizer")
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(text, str) for text in value):
        raise TrigraphError(f"{key} must be an array of strings")
    return list(value)


def _token_id(metadata: Mapping[str, Any], key: str, vocabulary_size: int) -> int | None:
    value = metadata.get(key)
    if value is None or (type(value) is int and value in _NO_TOKEN):
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocabulary_size:
        raise TrigraphError(f"{key} is {quote(value)}; it must be a token id below {vocabulary_size}")
    return value


def _token_ids(metadata: Mapping[str, Any], key: str, vocabulary_size: int) -> list[int]:
    """The token ids in an array, which may be missing."""
    value = metadata.get(key)
    if value is None:
        return []
    if (
        not isinstance(value, np.ndarray)
        or value.dtype.kind not in "iu"
        or not (value >= 0).all()
        or not (value < vocabulary_size).all()
    ):
        raise TrigraphError(f"{key} is {quote(value)}; it must be an array of token ids below {vocabulary_size}")
    return [int(token) for token in value]
