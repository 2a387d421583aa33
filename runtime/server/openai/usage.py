"""Counts and times of a request, as OpenAI and llama-server write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.server.job import Generation, Usage


def openai_usage(usage: Usage) -> dict[str, Any]:
    """The `usage` of completions and chat completions."""
    images = {"image_tokens": usage.images} if usage.images else {}
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached, **images},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning,
            "accepted_prediction_tokens": usage.accepted,
            "rejected_prediction_tokens": usage.drafted - usage.accepted,
        },
    }


def prompt_progress(request: Handle) -> dict[str, Any]:
    """llama-server's `prompt_progress`: how much of a prompt has been computed."""
    done, total = request.progress
    return {
        "total": total,
        "cache": request.reused,
        "processed": done,
        "time_ms": round(request.stats.prompt_seconds * 1e3),
    }


def timings(generations: Sequence[Generation]) -> dict[str, Any]:
    """llama-server's `timings`, of the first completion."""
    stats = generations[0].request.stats
    return {
        "cache_n": stats.reused_tokens,
        "prompt_n": stats.prompt_tokens,
        "prompt_ms": stats.prompt_seconds * 1e3,
        "prompt_per_token_ms": stats.prompt_seconds * 1e3 / max(1, stats.prompt_tokens),
        "prompt_per_second": stats.prompt_rate,
        "predicted_n": stats.tokens,
        "predicted_ms": stats.seconds * 1e3,
        "predicted_per_token_ms": stats.seconds * 1e3 / max(1, stats.tokens),
        "predicted_per_second": stats.rate,
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
    }
