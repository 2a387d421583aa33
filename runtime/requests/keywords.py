"""What a request asks for, as keywords: the fields of Options and of Sampling by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypedDict

from trigraph.models.checks import check_keywords
from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.requests.options import Options
from trigraph.runtime.sampling.constraint import Constraint
from trigraph.runtime.sampling.sampling import Sampling


class Keywords(TypedDict, total=False):
    """The fields of Options, and those of Sampling."""

    sampling: Sampling | None
    max_tokens: int | None
    stop: str | Sequence[str]
    stop_tokens: Sequence[int]
    ignore_eos: bool
    constraint: Constraint | None
    reasoning_budget: int | None
    speculate: bool
    draft_tokens: int | None
    drafter: str
    draft_p_min: float | None
    forced: Sequence[int]
    logprobs: int | None
    hidden: bool
    receipt: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_window: int
    seed: int
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]]


_OF_OPTIONS = {field.name for field in fields(Options)}
_CONSTRAINT = "use constraint=JsonSchema(...), Grammar(...) or Regex(...)"
_CONTEXT = "the context is a setting of load: load(MODEL, context=32768)"
# What other engines call them.
_FOREIGN = {
    **dict.fromkeys(
        ("max_new_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "num_predict", "max_length"),
        "use max_tokens",
    ),
    "temp": "use temperature",
    **dict.fromkeys(("repetition_penalty", "penalty_repeat"), "use repeat_penalty"),
    **dict.fromkeys(("repeat_last_n", "last_n_tokens_size", "penalty_last_n"), "use penalty_window"),
    **dict.fromkeys(("do_sample", "greedy"), "temperature=0 always takes the most likely token"),
    **dict.fromkeys(("stop_sequences", "stop_strings"), "use stop"),
    **dict.fromkeys(("stop_token_ids", "eos_token_id"), "use stop_tokens"),
    **dict.fromkeys(("random_seed", "manual_seed", "generator"), "use seed"),
    **dict.fromkeys(("top_logprobs", "prompt_logprobs", "n_probs"), "use logprobs; engine.score has those of a text"),
    **dict.fromkeys(("num_draft_tokens", "num_speculative_tokens", "draft_max"), "use draft_tokens"),
    **dict.fromkeys(("format", "response_format", "json_schema", "schema", "guided_json"), _CONSTRAINT),
    **dict.fromkeys(("grammar", "regex", "guided_decoding", "structured_outputs"), _CONSTRAINT),
    **dict.fromkeys(("n", "best_of", "num_return_sequences"), "call submit once for each, with a seed of its own"),
    **dict.fromkeys(("stream", "streaming", "streamer"), "iterate over the result to get text in pieces"),
    **dict.fromkeys(("n_ctx", "num_ctx", "max_model_len"), _CONTEXT),
    **dict.fromkeys(("messages", "system", "tools", "chat_template_kwargs"), "engine.chat() begins a conversation"),
    **dict.fromkeys(("images", "image"), "show images in a conversation: engine.chat().say(text, images=[...])"),
    **dict.fromkeys(("sampling_params", "generation_config"), "give an Options, or its fields as keywords"),
    **dict.fromkeys(("num_beams", "length_penalty"), "beam search is not offered"),
    **dict.fromkeys(("typical_p", "mirostat", "tfs_z"), "not offered; top_k, top_p and min_p are"),
}


def asked(options: Options | None, keywords: Mapping[str, Any], suggested: Sampling) -> Options:
    """`options` with `keywords` in their place, and with the model's `suggested` sampling where they have none.

    Raises TrigraphError for an unknown keyword, which it explains, and for a value out of range.
    """
    if not isinstance(options, Options | None):
        raise TrigraphError(f"options is {quote(options)}; it must be an Options, and keywords such as max_tokens=100")
    check_keywords("a request", keywords, Keywords.__annotations__, _FOREIGN)
    found = dict(keywords)
    if isinstance(found.get("stop"), str):
        found["stop"] = (found["stop"],)
    if isinstance(found.get("logit_bias"), Mapping):
        found["logit_bias"] = tuple(found["logit_bias"].items())
    of_options = {name: found.pop(name) for name in _OF_OPTIONS & found.keys()}
    options = replace(options or Options(), **of_options).of_model(suggested)
    return replace(options, sampling=replace(options.chosen_by, **found)) if found else options
