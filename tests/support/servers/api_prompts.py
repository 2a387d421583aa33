"""One request for a reply, as each of the three chat APIs reads it: nothing is generated."""

from __future__ import annotations

import json
from typing import Any

from trigraph.runtime.server.anthropic.messages import Messages
from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.job import Job
from trigraph.runtime.server.openai.chat_completions import ChatCompletion
from trigraph.runtime.server.openai.responses import Responses

JOBS: dict[str, type[Job]] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/responses": Responses,
    "/v1/messages": Messages,
}


def job(service: ServedModel, path: str, body: dict[str, Any]) -> Any:
    """What a request becomes."""
    make: Any = JOBS[path]
    return make(service, json.dumps(body).encode())


def prompt(service: ServedModel, path: str, body: dict[str, Any]) -> str:
    """The text of the prompt that a request becomes."""
    (generation,) = job(service, path, body).generations
    return service.engine.tokenizer.spell(generation.request.prompt)
