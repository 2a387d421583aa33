"""What llama-server's clients ask about the server and the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trigraph.runtime import __version__
from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.llama.completion import generation_settings
from trigraph.runtime.server.llama.schema import TemplateRequest
from trigraph.runtime.server.openai.chat_completions import as_message
from trigraph.runtime.server.prompt import chat_prompt, template_variables
from trigraph.runtime.server.queries import special_texts
from trigraph.runtime.server.schema import parse
from trigraph.runtime.server.tools import Tools


def apply_template(model: ServedModel, body: bytes) -> dict[str, Any]:
    """The prompt that messages become."""
    fields = parse(TemplateRequest, body)
    messages = [as_message(message, i) for i, message in enumerate(fields.messages)]
    tools = [*Tools.of(tool.flat() for tool in fields.tools or ()).functions.values()]
    variables = template_variables(fields.chat_template_kwargs, fields.reasoning_effort)
    return {"prompt": chat_prompt(model, messages, tools, variables, counted=True).text}


def props(model: ServedModel) -> dict[str, Any]:
    """What the server is, and the defaults of requests."""
    engine, settings = model.engine, model.settings
    seed = -1 if settings.seed is None else settings.seed
    return {
        "default_generation_settings": {
            "n_ctx": engine.context,
            "params": {**generation_settings(settings.defaults.of_model(engine.sampling)), "seed": seed},
        },
        "total_slots": len(slots(model)),
        "model_alias": settings.model,
        "model_path": settings.path or settings.model,
        **special_texts(model),
        "modalities": {"vision": engine.tower is not None, "audio": False},
        "build_info": f"trigraph {__version__}",
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "is_sleeping": False,
    }


def brief(model: Mapping[str, Any]) -> dict[str, Any]:
    """A model of `/v1/models` as llama-server's clients look for it: `capabilities` says whether it sees."""
    sees = "image" in model.get("architecture", {}).get("input_modalities", ())
    capabilities = ["completion", "multimodal"] if sees else ["completion"]
    return {"name": model["id"], "model": model["id"], "type": "model", "capabilities": capabilities}


def slots(model: ServedModel) -> list[dict[str, Any]]:
    """A slot for each request that may be computed at once: those that are computed come first."""
    load = model.engine.load
    return [
        {"id": i, "n_ctx": model.engine.context, "speculative": True, "is_processing": i < load.running}
        for i in range(max(load.sequences, load.running, 1))
    ]
