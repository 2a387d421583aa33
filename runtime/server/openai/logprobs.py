"""Log-probabilities of tokens, as OpenAI writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trigraph.runtime.requests.logprobs import TokenLogprob
from trigraph.runtime.text.tokenizer import Tokenizer

_LEAST = -9999.0  # JSON has no infinity


def chat_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The `logprobs` of a choice of a chat completion."""
    content = []
    for token in logprobs:
        top = [logprob_entry(tokenizer, other, value) for other, value in token.top]
        content.append({**logprob_entry(tokenizer, token.token, token.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """The `logprobs` of a choice of a completion; `offset`: where its first token stands in the text."""
    lists: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for token in logprobs:
        text = tokenizer.spell([token.token])
        lists["tokens"].append(text)
        lists["token_logprobs"].append(_number(token.logprob))
        lists["top_logprobs"].append({tokenizer.spell([other]): _number(value) for other, value in token.top})
        lists["text_offset"].append(offset)
        offset += len(text)
    return lists


def prompt_logprobs(tokenizer: Tokenizer, first: int, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The log-probabilities of a prompt, of whose `first` token nothing is known."""
    text = tokenizer.spell([first])
    rest = completion_logprobs(tokenizer, logprobs, len(text))
    unknown: dict[str, list[Any]] = {
        "tokens": [text],
        "token_logprobs": [None],
        "top_logprobs": [None],
        "text_offset": [0],
    }
    return {name: [*unknown[name], *values] for name, values in rest.items()}


def logprob_entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    """A token, its bytes, and its log-probability."""
    text = tokenizer.spell([token])
    return {"token": text, "logprob": _number(logprob), "bytes": list(tokenizer.token_bytes(token) or text.encode())}


def _number(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LEAST
