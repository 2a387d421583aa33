"""A server's engine that reads images, on the fake model: it says what a test has written, whatever it sees."""

from __future__ import annotations

import base64
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from support.fakes.engine import END, METADATA, VOCAB
from support.pictures.pictures import every_kind
from support.servers.scripted import PLAIN_TEMPLATE, replying
from trigraph.models.tokenizer import tokenizer_json
from trigraph.models.vision.config import VisionConfig
from trigraph.runtime import Engine, Sampling
from trigraph.runtime.images.limits import ImageLimits
from trigraph.runtime.images.prompt import ImagePrompt
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.options import Options
from trigraph.runtime.server.settings import Settings
from trigraph.runtime.text.template import ChatTemplate
from trigraph.runtime.text.tokenizer import Tokenizer

TOWER = VisionConfig("tower", 1, 96, 4, 128, 256, 8, 1e-6, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
TEMPLATE = PLAIN_TEMPLATE.replace(
    '{{- m.content or "" }}',
    """{%- if m.content is string %}{{- m.content }}{% else %}{% for part in m.content or [] %}
        {{- "<|vision_start|><|image_pad|><|vision_end|>" if part.type == "image" else part.text }}
    {%- endfor %}{% endif %}""",
)


VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")


class Seeing:
    """An engine with a tower. `prompts`: what it was given."""

    def __init__(
        self,
        reply: str = "Yes.",
        limits: ImageLimits | None = None,
        context: int = 20000,
        template: ChatTemplate | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        engine = replying(reply, context=context)
        tokens = [*METADATA["tokenizer.ggml.tokens"], *VISION]
        types = [*METADATA["tokenizer.ggml.token_type"], *[3] * len(VISION)]
        added = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
        tokenizer = tokenizer or Tokenizer(tokenizer_json(METADATA | added), [END])
        template = template or ChatTemplate(TEMPLATE, {"eos_token": "<|end|>"}, tokenizer.control_names)
        self.engine = Engine(replace(engine.model, tokenizer=tokenizer, template=template))
        self.tower: VisionConfig | None = TOWER
        self.image_limits = limits or ImageLimits()
        self.prompts: list[list[int] | ImagePrompt] = []
        self.checkpoints: list[Collection[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def generate(
        self, prompt: list[int] | ImagePrompt, options: Options, *, checkpoints: Collection[int] = ()
    ) -> Handle:
        self.prompts.append(prompt)
        self.checkpoints.append(checkpoints)
        ids = prompt.ids if isinstance(prompt, ImagePrompt) else prompt
        known = [token if token < VOCAB else 0 for token in ids]
        return self.engine.generate(known, options, checkpoints=checkpoints)


KINDS = every_kind()
LIMITED = Settings(
    model="seeing",
    port=0,
    defaults=Options(Sampling(temperature=0)),
    max_images=3,
    max_body=1_000_000,
)


def limited_engine() -> Seeing:
    """One that takes small images only."""
    return Seeing(limits=ImageLimits(tokens=100, pixels=1_000_000, bytes=200_000))


def base64_of(kind: str = "png") -> str:
    return base64.b64encode(KINDS[kind]).decode()


def uri(kind: str = "png") -> str:
    return f"data:image/{kind.split()[0]};base64,{base64_of(kind)}"


def chat_image(url: str) -> dict[str, Any]:
    """A part of OpenAI's chat."""
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


def say(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
