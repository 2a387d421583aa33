"""Questions that the server answers without generating anything: tokens of a text, and the text of tokens."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasChoices, Field

from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.openai.chat_completions import as_message
from trigraph.runtime.server.openai.schema import ChatMessage
from trigraph.runtime.server.prompt import chat_prompt, check_length, encoded
from trigraph.runtime.server.schema import Ids, Items, Object, Schema, parse


class TokenizeRequest(Schema):
    """A text (llama-server's name or vLLM's), or messages."""

    content: Annotated[str | None, Field(validation_alias=AliasChoices("content", "prompt"))] = None
    messages: Annotated[Items[ChatMessage], Field(min_length=1)] | None = None
    add_special: Annotated[bool, Field(validation_alias=AliasChoices("add_special", "add_special_tokens"))] = True
    with_pieces: bool = False
    return_token_strs: bool = False
    chat_template_kwargs: Object | None = None


class DetokenizeRequest(Schema):
    """Token ids."""

    tokens: Ids


def tokenize(model: ServedModel, body: bytes) -> dict[str, Any]:
    """The ids of a text, as llama-server and vLLM give them."""
    fields = parse(TokenizeRequest, body)
    tokenizer = model.engine.tokenizer
    if fields.messages is not None:
        messages = [as_message(message, i) for i, message in enumerate(fields.messages)]
        ids = chat_prompt(model, messages, (), fields.chat_template_kwargs, counted=True).ids
    elif fields.content is not None:
        ids = encoded(model.engine, fields.content, start=fields.add_special)
        check_length(model.engine, ids, "content", counted=True)
    else:
        raise ApiError("content is missing; give a text, or messages", param="content")
    answer: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": model.engine.context}
    if fields.with_pieces:
        answer["tokens"] = [{"id": token, "piece": tokenizer.spell([token])} for token in ids]
    if fields.return_token_strs:
        answer["token_strs"] = [tokenizer.spell([token]) for token in ids]
    return answer


def tokenizer_info(model: ServedModel) -> dict[str, Any]:
    """The control tokens and the chat template, as vLLM gives them; lm-eval counts tokens with that and /tokenize."""
    return {"tokenizer_class": "trigraph", "pad_token": None, **special_texts(model)}


def special_texts(model: ServedModel) -> dict[str, Any]:
    """The tokens that begin and end a text, and the chat template."""
    tokenizer = model.engine.tokenizer
    end = min(tokenizer.stop_ids, default=None)
    template = model.settings.template or model.engine.chat_template()
    return {
        "bos_token": None if tokenizer.bos_id is None else tokenizer.text_of(tokenizer.bos_id),
        "eos_token": None if end is None else tokenizer.text_of(end),
        "chat_template": template.source,
    }


def detokenize(model: ServedModel, body: bytes) -> dict[str, Any]:
    """The text of ids, as llama-server (`content`) and vLLM (`prompt`) give it; control tokens are written out."""
    fields = parse(DetokenizeRequest, body)
    check_length(model.engine, fields.tokens, "tokens", counted=True)
    size = model.engine.tokenizer.size
    if (largest := max(fields.tokens, default=0)) >= size:
        raise ApiError(f"tokens has {largest}; ids of this model are from 0 to {size - 1}", param="tokens")
    text = model.engine.tokenizer.spell(fields.tokens)
    return {"content": text, "prompt": text}
