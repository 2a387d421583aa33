"""Counts and times of a request, as OpenAI and llama-server write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def prompt_progress(generation: Generation) -> dict[str, Any]:
    """llama-server's `prompt_progress`: how much of a prompt has been computed."""
    request = generation.request
    return {
        "total": len(request.prompt),
        "cache": request.reused,
        "processed": generation.told,
        "time_ms": round(_computed(generation)[1] * 1e3),
    }


def timings(generations: Sequence[Generation]) -> dict[str, Any]:
    """llama-server's `timings`, of the first completion."""
    stats = generations[0].request.stats
    count, seconds = _computed(generations[0])
    return {
        "cache_n": stats.reused_tokens,
        "prompt_n": count,
        "prompt_ms": seconds * 1e3,
        "prompt_per_token_ms": seconds * 1e3 / max(1, count),
        "prompt_per_second": count / seconds if seconds else 0.0,
        "predicted_n": stats.tokens,
        "predicted_ms": stats.seconds * 1e3,
        "predicted_per_token_ms": stats.seconds * 1e3 / max(1, stats.tokens),
        "predicted_per_second": stats.rate,
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
    }


def _computed(generation: Generation) -> tuple[int, float]:
    """Tokens of the prompt that were computed so far, as its reader was told, and the seconds since that began."""
    stats = generation.request.stats
    if not 0 <= generation.told < len(generation.request.prompt):
        return stats.prompt_tokens, stats.prompt_seconds
    count = generation.told - stats.reused_tokens
    return count, stats.prompt_seconds if count else 0.0
