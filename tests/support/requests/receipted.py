"""Completions with receipts and log-probabilities, made in every way that an engine has of making them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from support.fakes.rounds import finish, queued, run_round
from support.requests.random_requests import Asked
from support.servers.dying_replicas import DyingReplicas
from trigraph.runtime import Receipt, load
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.logprobs import TokenLogprob
from trigraph.runtime.scheduler.room import Room

CONTEXT = 200
SHORT, SHORT_CONTEXT = 12, 36
WAYS = ("alone", "together", "preempted", "failed over")


class Made(NamedTuple):
    """A completion that was made."""

    receipt: Receipt
    logprobs: list[TokenLogprob]


def completions(package: Path, asked: list[Asked], device: str = "cpu", *, context: int = CONTEXT) -> Iterator[Made]:
    """A quarter of the requests in each of the WAYS, which many of them, but not few, are sure to take."""
    few = len(asked) < 40
    for number, way in enumerate(WAYS):
        part = [replace(one, options=replace(one.options, receipt=True, logprobs=1)) for one in asked[number::4]]
        state = load(package, threads=1, context=context, sequences=1, device=device).steps.state
        contexts = 1 if way == "preempted" else 8
        memory = contexts * state.limits.pages * state.page_bytes
        engine = load(package, threads=2, context=context, sequences=4, kv_memory=memory, device=device)
        streams: list[Handle] = []
        if way == "alone":
            for one in part:
                engine.cache.clear()
                streams.append(request := engine.generate(one.prompt, one.options))
                request.run()
        elif way == "failed over":
            replicas = DyingReplicas(engine)
            streams += asyncio.run(_by_replicas(replicas, part))
            assert replicas.losses or few
        else:
            requests = [queued(engine, [*one.prompt], one.options) for one in part]
            with patch.object(Room, "fits", lambda *_: True) if way == "preempted" else nullcontext():
                run_round(engine)
                finish(engine, requests, 1 + 300 * len(requests))
            assert way != "preempted" or any(request.preemptions for request in requests) or few
            streams += requests
        for stream in streams:
            assert stream.error is None
            yield Made(Receipt.of(stream, engine.identity), stream.logprobs)
        engine.close()


def shortened(asked: Asked) -> Asked:
    """The request with at most SHORT tokens of prompt and completion, for an emulator."""
    most = asked.options.max_tokens
    limited = replace(asked.options, max_tokens=SHORT if most is None else min(most, SHORT))
    return replace(asked, prompt=asked.prompt[-SHORT:], options=limited)


async def _by_replicas(replicas: DyingReplicas, asked: list[Asked]) -> list[Handle]:
    front, streams = replicas.front(), []
    for one in asked:
        streams.append(stream := front.generate([*one.prompt], one.options))
        async for _ in stream:
            pass
    return [*streams]
