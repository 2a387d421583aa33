"""Hostile texts and messages, and damaged chat templates: each becomes tokens that have its bytes, or is refused.

The tokenizer is native code in this process; a template runs in a process of its own, which it may end.
"""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path
from typing import Any

from fuzz.damage import TEXTS
from support.fakes.engine import END, METADATA
from support.servers.scripted import TEMPLATE
from trigraph.models.tokenizer import tokenizer_json
from trigraph.runtime.text.control_names import MARK
from trigraph.runtime.text.template import ChatTemplate
from trigraph.runtime.text.tokenizer import Tokenizer

_PIECES = (
    *TEXTS, "<|end|>", "<|end", "<think>", "\r\n", " ", "\t", "\u0301", "e\u0301\u0323", "\u3000", "\u1100\u1161",
    "👩‍👩‍👧", "1", "日本", "'s", "'LL", "ſ", "İ", "{%", "}}", MARK, "the", "\U0010ffff", "\u0e33", "\u200d",
)  # fmt: skip
_MERGED = ("t h", "h e", "th e", "1 1", "11 11", "x x", "xx xx", "xxxx xxxx", "Ġ Ġ", "ĠĠ ĠĠ", "Ġ the", "Ì ģ", "ĠĠĠĠ x")
_TRAPS = (
    "{% for a in range(10**9) %}{% endfor %}", "{{ 'a' * 10**10 }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{{ ''.__class__ }}", "{{ messages[0].x.y }}", "{{ (1,) * 10**9 }}", "{{ 2**10**7 }}", "{{ '%9999999999d' % 1 }}",
    "{" * 5000, "(" * 5000, "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "{{ messages | tojson }}", "{{ ",
    "{{ " + "[" * 90 + "]" * 90 + " }}", "{{ 1" + " + 1" * 9000 + " }}", "{% if 1 %}" * 400, "{{ messages|map('x') }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "{{ x" + "|trim" * 3000 + " }}",
)  # fmt: skip
_MOST = 300_000  # characters of a text


class Fuzzer:
    """See fuzz.target.Target."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer(tokenizer_json(_metadata()), [END])
        self._bytes = self._tokenizer.all_bytes()
        self._template = ChatTemplate(TEMPLATE, {"eos_token": "<|end|>"})

    def run(self, seed: int, case: int) -> str:
        """Encode a text, and messages as a template renders them."""
        rng = random.Random(f"{seed}:{case}")
        self._encode(_text(rng))
        template = self._template
        if rng.random() < 0.1:
            start, end = sorted(rng.choices(range(len(TEMPLATE)), k=2))
            damaged = TEMPLATE[:start] + rng.choice(_TRAPS) + TEMPLATE[rng.choice((start, end)) :]
            template = template.with_source(damaged)
        roles = ("user", "assistant", "tool", rng.choice(_PIECES))
        messages = [{"role": rng.choice(roles), "content": _text(rng)} for _ in range(rng.randint(1, 3))]
        self._encode(template.render(messages))
        return "rendered"

    def _encode(self, text: str) -> None:
        ids = self._tokenizer.encode(text)
        assert self._joined(ids) == unicodedata.normalize("NFC", text.replace(MARK, "")).encode()
        exact = text[:4000]
        assert self._joined(self._tokenizer.encode_exactly(exact)) == exact.encode()

    def _joined(self, ids: list[int]) -> bytes:
        return b"".join(self._bytes[token] for token in ids)


def _metadata() -> dict[str, Any]:
    """A vocabulary whose merges long runs of a character, words and half-characters take part in."""
    texts = [*METADATA["tokenizer.ggml.tokens"], *(pair.replace(" ", "") for pair in _MERGED)]
    types = [*METADATA["tokenizer.ggml.token_type"], *(1 for _ in _MERGED)]
    return {
        **METADATA,
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [*_MERGED],
    }


def _text(rng: random.Random) -> str:
    """A few pieces, one of which may be repeated until the text is long; now and then no Unicode."""
    pieces = rng.choices(_PIECES, k=rng.randint(0, 9))
    if pieces and rng.random() < 0.2:
        at = rng.randrange(len(pieces))
        pieces[at] *= rng.choice((99, 9999, _MOST)) // max(len(pieces[at]), 1)
    if rng.random() < 0.05:
        pieces.append("\ud800")
    return "".join(pieces)[:_MOST]
