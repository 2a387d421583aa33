"""Hostile texts and messages, and damaged chat templates: each becomes tokens that have its bytes, or is refused.

The tokenizer is native code in this process; a template runs in a process of its own, and may end that one.
"""

from __future__ import annotations

import random
from pathlib import Path

from fuzz.damage import TEXTS
from support.fake_engine import END, METADATA
from support.server import TEMPLATE
from trigraph.models.tokenizer import tokenizer_json
from trigraph.runtime.text.template import ChatTemplate
from trigraph.runtime.text.tokenizer import Tokenizer

_PIECES = (
    *TEXTS, "<|end|>", "<think>", "</think>", "\r\n", " " * 99, "\u0301" * 99, "\ud800", "👩‍👩‍👧", "1" * 999, "日本",
    "\0", "a1 " * 4000, "'s", "{%", "}}",
)  # fmt: skip
_TRAPS = (
    "{% for a in range(10**9) %}{% endfor %}", "{{ 'a' * 10**10 }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{{ ''.__class__ }}", "{{ messages[0].x.y }}", "{{ (1,) * 10**9 }}", "{{ 2**10**7 }}", "{{ '%9999999999d' % 1 }}",
    "{" * 5000, "(" * 5000, "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "{{ messages | tojson }}",
)  # fmt: skip


class Fuzzer:
    """See fuzz.target.Target."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer(tokenizer_json(METADATA), [END])
        self._template = ChatTemplate(TEMPLATE, {"eos_token": "<|end|>"})

    def run(self, seed: int, case: int) -> str:
        """Render messages and encode what comes of them."""
        rng = random.Random(f"{seed}:{case}")
        template = self._template
        if rng.random() < 0.2:
            at = rng.randrange(len(TEMPLATE))
            template = template.with_source(TEMPLATE[:at] + rng.choice(_TRAPS) + TEMPLATE[at + rng.randrange(9) :])
        text = template.render(
            [
                {"role": rng.choice(("user", "assistant", "tool", _text(rng, 1))), "content": _text(rng, 9)}
                for _ in range(rng.randint(1, 4))
            ]
        )
        for exact in (text, _text(rng, 30)):
            assert self._tokenizer.encode(exact, most=1 << 20) is not None
            plain = exact.encode(errors="replace").decode()
            ids = self._tokenizer.encode_exactly(plain)
            assert b"".join(self._tokenizer.all_bytes()[token] for token in ids) == plain.encode()
        return "rendered"


def _text(rng: random.Random, most: int) -> str:
    return "".join(rng.choices(_PIECES, k=rng.randint(0, most)))
