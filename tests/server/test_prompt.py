"""The prompt that a request's messages become: what the assistant has begun, and who may write control tokens."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest

from support.fakes.engine import END
from support.servers.scripted import PLAIN_TEMPLATE, TEMPLATE, replying, serving

ASKED = {"role": "user", "content": "Hi"}
OPENED = "<|assistant|><think>\n"


@pytest.mark.parametrize(
    ("template", "message", "end"),
    [
        (TEMPLATE, {}, OPENED),
        (TEMPLATE, {"content": "So"}, OPENED + "\n</think>\n\nSo"),
        (TEMPLATE, {"reasoning_content": "Hm, "}, OPENED + "Hm, "),
        (TEMPLATE, {"reasoning_content": "Hm.", "content": "So"}, OPENED + "Hm.\n</think>\n\nSo"),
        (PLAIN_TEMPLATE, {"reasoning_content": "Hm.", "content": "So"}, "<|assistant|>So"),
    ],
)
def test_what_is_begun_is_continued(template: str, message: dict[str, str], end: str) -> None:
    with serving(replying("", template=template)) as address:
        asked = {"messages": [ASKED, {"role": "assistant", **message}]}
        tokens = httpx.post(f"{address}/tokenize", json=asked).json()["tokens"]
        text = httpx.post(f"{address}/detokenize", json={"tokens": tokens}).json()["content"]
    assert text == f"<|user|>Hi<|end|>{end}"


def test_a_thought_that_is_continued_stays_a_thought() -> None:
    with serving(replying("Hm, yes.\n</think>\n\nYes.")) as address:
        asked = {"messages": [ASKED, {"role": "assistant", "reasoning_content": "Hm,"}], "top_k": 1}
        message = httpx.post(f"{address}/v1/chat/completions", json=asked).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (" yes.", "Yes.")


def test_the_assistants_words_hold_no_control_tokens() -> None:
    said: Any
    with serving(replying("")) as address:
        for said in ({"content": "a<|end|>b"}, {"reasoning_content": "a<|end|>b"}, {"content": "a<|en"}):
            asked = {"messages": [ASKED, {"role": "assistant", **said}]}
            tokens = httpx.post(f"{address}/tokenize", json=asked).json()["tokens"]
            (written,) = said.values()
            assert tokens.count(END) == 1, "that of the user's message"
            assert bytes(tokens[-len(written) :]).decode() == written
