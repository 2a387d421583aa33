"""Checks what is asked of a model, and makes a request of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import SupportsIndex

from trigraph.models.checks import check
from trigraph.models.errors import TrigraphError
from trigraph.runtime.images.prompt import ImagePrompt, image_keys
from trigraph.runtime.requests.completion import check_vocabulary, checked_prompt, token_ids
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.options import Options
from trigraph.runtime.requests.prompt_images import PromptImages
from trigraph.runtime.requests.recording import RecordingSampler, sampler_of
from trigraph.runtime.requests.request import Request
from trigraph.runtime.scheduler.driver import Driver
from trigraph.runtime.scheduler.model import Model


def new_request(
    driver: Driver,
    model: Model,
    prompt: Iterable[SupportsIndex] | ImagePrompt,
    options: Options,
    *,
    completed: Iterable[SupportsIndex] = (),
    checkpoints: Collection[int] = (),
    priority: int = 0,
    timeout: float | None = None,
    finish: Callable[[list[int]], None] | None = None,
    replayed: list[int] | None = None,
) -> Handle:
    """A request that is not queued yet; see Engine.generate.

    `completed`: the completion's first tokens, which are known. `timeout`: seconds from now on until it ends as it is.
    `finish` is called in the engine's thread, see Request. `replayed`: the whole completion, a final stop token
    included, to be computed again; it fails with OtherTokenError at the first token that would be another one. Raises
    TrigraphError for what the model cannot do.
    """
    driver.check()
    model.weights.check()
    ids = checked_prompt(prompt, options, model.context, model.vocab)
    options = options.of_model(model.sampling)
    shown = prompt if isinstance(prompt, ImagePrompt) and prompt.images else None
    images = PromptImages.of(model.vision, shown)
    if options.receipt and model.device.library is None:
        raise TrigraphError(
            "a receipt needs the operator library: without it, bits depend on the processor; reinstall trigraph"
        )
    if replayed:
        check_vocabulary(replayed, model.vocab)
    guide = None if options.constraint is None else model.guide(options.constraint)
    check("priority", priority, int)
    if timeout is not None:
        check("timeout", timeout, float, lambda seconds: seconds >= 0, "0 or more")
    handle = Handle(ids, options, model.tokenizer, model.context, guide=guide, shown=shown)
    tokens = image_keys(images.placed, ids)
    said = [token for token in tokens if token >= 0] if shown else tokens
    handle.runner = driver
    handle.request = request = Request(
        handle,
        sampler_of(options, said, guide, model.thought(options, ids), replayed),
        model.draft_length(options, driver.acceptance),
        tokens=tokens,
        images=images,
        checkpoints={length for length in checkpoints if 0 < length < len(ids)},
        finish=finish,
        priority=priority,
        deadline=None if timeout is None else time.monotonic() + timeout,
    )
    handle.report = request.draft_length.report
    if isinstance(sampler := request.sampler, RecordingSampler):
        handle.logprobs, handle.hidden, handle.rows = sampler.logprobs, sampler.hidden, sampler.rows
    _repeat(request, token_ids("completed", completed), model.vocab)
    return handle


def _repeat(request: Request, completed: list[int], vocab: int) -> None:
    """Takes the known tokens, which leaves sampler and completion as they were when the last one was chosen."""
    if completed:
        check_vocabulary(completed, vocab)
    for token in completed:
        request.sampler.take(token)
        request.completion.push(token)
    if request.completion.ids != completed:
        raise TrigraphError(
            f"completed has {len(completed)} tokens, and the completion ends before them; give what it had so far"
        )
