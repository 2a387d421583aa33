"""Where the prompts of later turns of a conversation part from the prompt of this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.prefix import common_prefix
from trigraph.runtime.text.control_names import MARK
from trigraph.runtime.text.template import ChatTemplate, Message
from trigraph.runtime.text.tokenizer import Tokenizer

_UNKNOWN = "\N{SYMBOL FOR NULL}"  # stands for what will be said


def next_turn_checkpoints(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    prompt: tuple[str, list[int]],
    tools: Sequence[Mapping[str, Any]] = (),
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Lengths of a prompt that other prompts will begin with: the next turn's, and those after the same system message.

    `prompt`: what `template` made of `messages`, and its token ids.
    """
    later = [[*messages, _message("assistant"), _message("user")]]
    if messages and messages[0]["role"] == "system":
        later.append([messages[0], _message("user")])
    text, ids = prompt
    lengths = []
    for others in later:
        with suppress(TrigraphError):  # refused: say, it wants no two turns, and there will be none
            common = common_prefix(text, template.render(others, tools=tools, variables=variables))
            lengths.append(len(ids) - _tokens_of_end(tokenizer, ids, len(text[common:].replace(MARK, "").encode())))
    return lengths


def _tokens_of_end(tokenizer: Tokenizer, ids: list[int], size: int) -> int:
    """How many of the last ids have any of the last `size` bytes of the text."""
    count = 0
    while size > 0 and count < len(ids):
        count += 1
        size -= len(tokenizer.token_bytes(ids[-count])) or len(tokenizer.spell(ids[-count:][:1]).encode())
    return count


def _message(role: str) -> Message:
    return {"role": role, "content": _UNKNOWN}
