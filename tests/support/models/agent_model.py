"""The tiny model as an agent's: with the control tokens and a chat template of Qwen's, and a long context."""

from __future__ import annotations

from pathlib import Path

from support.models.gguf_bytes import contents, gguf_bytes
from support.models.real_vocabulary import real_template
from trigraph.models.tiny import TINY_GGUF
from trigraph.models.tokenizer import USER_DEFINED

_NAMES = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


def write_agent_model(path: Path, context: int, template: str = "qwen3_6") -> Path:
    """Writes the file. The names take the place of the last tokens, which no others are merged from."""
    pairs, tensors = contents(TINY_GGUF)
    tokens, types = [*pairs["tokenizer.ggml.tokens"]], pairs["tokenizer.ggml.token_type"].copy()
    tokens[-len(_NAMES) :] = _NAMES
    types[-len(_NAMES) :] = USER_DEFINED
    known = {*tokens}
    merges = [merge for merge in pairs["tokenizer.ggml.merges"] if merge.replace(" ", "") in known]
    pairs |= {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.chat_template": real_template(template),
        f"{pairs['general.architecture']}.context_length": context,
    }
    path.write_bytes(gguf_bytes(pairs, tensors))
    return path
