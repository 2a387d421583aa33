"""Checks of token ids that a request is given."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import SupportsIndex

from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.images.prompt import ImagePrompt, PromptLengthError
from trigraph.runtime.requests.options import Options


def checked_prompt(
    prompt: Iterable[SupportsIndex] | ImagePrompt, options: Options, context: int, vocab: int
) -> list[int]:
    """The token ids of a prompt. Raises TrigraphError when a model of this size cannot continue it as `options` say."""
    if not isinstance(options, Options):
        raise TrigraphError(f"options is {quote(options)}; it must be an Options")
    ids = token_ids("the prompt", prompt.ids if isinstance(prompt, ImagePrompt) else prompt)
    if not 1 <= len(ids) <= context:
        raise PromptLengthError(f"the prompt has {len(ids)} tokens; it must have 1 to {context}, the loaded context")
    check_vocabulary(ids, vocab)
    options.sampling.check_vocabulary(vocab)
    if options.forced:
        check_vocabulary([*options.forced], vocab)
        if (length := len(ids) + len(options.forced)) > context:
            raise TrigraphError(f"the prompt and forced have {length} tokens; the loaded context holds {context}")
    return ids


def token_ids(name: str, prompt: Iterable[SupportsIndex]) -> list[int]:
    """The ids as numbers. Raises TrigraphError for what is not a list of them."""
    try:
        if not isinstance(prompt, bytes):
            return [index(token) for token in prompt]
    except TypeError:
        pass
    raise TrigraphError(f"{name} is {quote(prompt)}; it must be a string or a list of token ids")


def check_vocabulary(prompt: list[int], vocab: int) -> None:
    """Raises TrigraphError when an id is not one of `vocab` tokens."""
    if min(prompt) < 0 or max(prompt) >= vocab:
        raise TrigraphError(f"token ids must be from 0 to {vocab - 1}, found {min(prompt)} to {max(prompt)}")
