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
_AROUND = 256  # characters before and after a place, by which its tokens are known


def next_turn_checkpoints(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    prompt: tuple[str, list[int]],
    tools: Sequence[Mapping[str, Any]] = (),
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Lengths of a prompt that other prompts will begin with: the next turn's, and those after the same system message.

    A next turn has an answer and a question, or a call of a tool and its result, without the thoughts before them: with
    these it begins with all of the prompt. `prompt`: what `template` made of `messages`, and its token ids.
    """
    user = _message("user")
    later = [[*messages, _message("assistant"), user]]
    if tools:
        call = {"id": "0", "type": "function", "function": {"name": _UNKNOWN, "arguments": {}}}
        said = {**_message("assistant"), "content": "", "tool_calls": [call]}
        later.append([*messages, said, {**_message("tool"), "tool_call_id": "0"}])
    if messages and messages[0]["role"] == "system":
        later.append([messages[0], user])
    text, ids = prompt
    lengths: dict[int, None] = {}
    for others in later:
        with suppress(TrigraphError):  # refused: say, it wants no two turns, and there will be none
            other = template.render(others, tools=tools, variables=variables)
            lengths[len(ids) - _tokens_of_end(tokenizer, ids, _size_of_end(tokenizer, text, other))] = None
    return [*lengths]


def _size_of_end(tokenizer: Tokenizer, text: str, other: str) -> int:
    """Bytes of `text` from where its tokens part from those of `other`, which may be before the characters do."""
    parted = common_prefix(text, other)
    near = max(0, parted - _AROUND)
    here, there = (tokenizer.encode(whole[near : parted + _AROUND], start=False) for whole in (text, other))
    common = sum(_size(tokenizer, token) for token in here[: common_prefix(here, there)])
    return len(text[near:].replace(MARK, "").encode()) - common


def _tokens_of_end(tokenizer: Tokenizer, ids: list[int], size: int) -> int:
    """How many of the last ids have any of the last `size` bytes of the text."""
    count = 0
    while size > 0 and count < len(ids):
        count += 1
        size -= _size(tokenizer, ids[-count])
    return count


def _size(tokenizer: Tokenizer, token: int) -> int:
    """Bytes of a token as the text has it."""
    return len(tokenizer.token_bytes(token)) or len(tokenizer.spell([token]).encode())


def _message(role: str) -> Message:
    return {"role": role, "content": _UNKNOWN}
