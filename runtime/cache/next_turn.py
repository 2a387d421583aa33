"""Where the prompts of later turns of a conversation part from the prompt of this one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trigraph.runtime.cache.prefix import common_prefix
from trigraph.runtime.text.control_names import MARK
from trigraph.runtime.text.history import Message
from trigraph.runtime.text.template_renderer import TemplateError
from trigraph.runtime.text.tokenizer import Tokenizer

_UNKNOWN = "\N{SYMBOL FOR NULL}"  # stands for what will be said
_AROUND = 256  # characters before and after a place, by which its tokens are known


def next_turns(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[list[Message]]:
    """Conversations whose prompts begin like that of `messages`: the next turn's, and another one's.

    A next turn has an answer and a question, or a call of a tool and its result, without the thoughts before them: with
    these it begins with all of the prompt. Another conversation has the same system message.
    """
    user = _message("user")
    later = [[*messages, _message("assistant"), user]]
    if tools:
        call = {"id": "0", "type": "function", "function": {"name": _UNKNOWN, "arguments": {}}}
        said = {**_message("assistant"), "content": "", "tool_calls": [call]}
        later.append([*messages, said, {**_message("tool"), "tool_call_id": "0"}])
    if messages and messages[0]["role"] == "system":
        later.append([messages[0], user])
    return later


def next_turn_checkpoints(
    tokenizer: Tokenizer, prompt: tuple[str, list[int]], others: Iterable[str | TemplateError]
) -> list[int]:
    """Lengths of a prompt, a text and its token ids, that `others` begin with: those of `next_turns`.

    The template may refuse one: say, it wants no two turns, and there will be none.
    """
    text, ids = prompt
    sizes = tokenizer.sizes(ids)
    ends = (_size_of_end(tokenizer, text, other) for other in others if isinstance(other, str))
    return [*dict.fromkeys(len(ids) - _tokens_of_end(sizes, size) for size in ends)]


def _size_of_end(tokenizer: Tokenizer, text: str, other: str) -> int:
    """Bytes of `text` from where its tokens part from those of `other`, which may be before the characters do."""
    parted = common_prefix(text, other)
    near = max(0, parted - _AROUND)
    here, there = (tokenizer.encode(whole[near : parted + _AROUND], start=False) for whole in (text, other))
    common = int(tokenizer.sizes(here[: common_prefix(here, there)]).sum())
    return len(text[near:].replace(MARK, "").encode()) - common


def _tokens_of_end(sizes: NDArray[np.int64], size: int) -> int:
    """How many of the last tokens, which have these sizes, have any of the last `size` bytes of the text."""
    if size <= 0:
        return 0
    return min(len(sizes), int(sizes[::-1].cumsum().searchsorted(size)) + 1)


def _message(role: str) -> Message:
    return {"role": role, "content": _UNKNOWN}
