"""Qwen's real templates and vocabulary behind the server: prompts with images as transformers makes them."""

from __future__ import annotations

import base64
import io
from typing import Any

import anthropic
import openai
import pytest
from PIL import Image

from support.fakes.engine import END
from support.models.real_vocabulary import real_metadata, real_template
from support.pictures.image_prompts import hf_processor, hf_prompt
from support.pictures.pictures import encode, pixels
from support.servers.scripted import serving
from support.servers.seeing_server import Seeing
from trigraph.models.rope_positions import positions_between
from trigraph.models.tokenizer import tokenizer_json
from trigraph.runtime.images.prompt import ImagePrompt
from trigraph.runtime.server.settings import Settings
from trigraph.runtime.text.template import ChatTemplate
from trigraph.runtime.text.tokenizer import Tokenizer

pytestmark = pytest.mark.slow
TEMPLATES = ("qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8")
SIZES = {"a": (70, 100), "b": (777, 333), "c": (512, 600)}
FILES = {name: encode(pixels(*size), "PNG") for name, size in SIZES.items()}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
TURNS: list[list[dict[str, Any]]] = [
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ["a", "What is <|image_pad|> this?"]}],
    [
        {"role": "assistant", "content": "A wave.", "reasoning_content": "Hm, a wave."},
        {"role": "user", "content": ["And ", "b", " beside ", "c", "?"]},
    ],
    [
        {"role": "assistant", "content": "", "reasoning_content": "I look.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": ["c", "closer"]},
    ],
    [{"role": "assistant", "content": "Sea.", "reasoning_content": "Water."}, {"role": "user", "content": "Sure?"}],
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(tokenizer_json(real_metadata(248320)), [END])


@pytest.fixture(scope="module")
def processor(tokenizer: Tokenizer) -> Any:
    return hf_processor(tokenizer, (64 << 10, 1 << 20))


def spoken(messages: list[dict[str, Any]], part: Any) -> list[dict[str, Any]]:
    """The messages with what `part` makes of each piece of their content."""
    return [
        {**message, "content": [part(piece) for piece in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in messages
    ]


def openai_part(piece: str) -> dict[str, Any]:
    if piece not in FILES:
        return {"type": "text", "text": piece}
    uri = "data:image/png;base64," + base64.b64encode(FILES[piece]).decode()
    return {"type": "image_url", "image_url": {"url": uri}}


def hf_part(piece: str) -> dict[str, Any]:
    if piece not in FILES:
        return {"type": "text", "text": piece}
    return {"type": "image", "image": Image.open(io.BytesIO(FILES[piece]))}


@pytest.mark.parametrize("thinking", [None, True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_turns(tokenizer: Tokenizer, processor: Any, name: str, thinking: bool | None) -> None:
    engine = Seeing(tokenizer=tokenizer, template=ChatTemplate(real_template(name), {}, tokenizer.control_names))
    variables = {} if thinking is None else {"enable_thinking": thinking}
    thinks = name != "qwen3_5_nothink" if thinking is None else thinking
    known: list[int] = []
    messages: list[dict[str, Any]] = []
    with serving(engine, Settings(port=0)) as url:
        client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        for turn in TURNS:
            messages += [
                {key: value for key, value in message.items() if thinks or key != "reasoning_content"}
                for message in turn
            ]
            found = client.chat.completions.create(
                model="x",
                messages=spoken(messages, openai_part),
                max_tokens=1,
                extra_body={"chat_template_kwargs": variables},
            )
            prompt = engine.prompts[-1]
            assert isinstance(prompt, ImagePrompt)
            shown = [
                {**message, "tool_calls": [{"function": {"name": "look", "arguments": {"at": "it"}}}]}
                if "tool_calls" in message
                else message
                for message in spoken(messages, hf_part)
            ]
            ids, theirs = hf_prompt(processor, engine.chat_template().source, shown, variables)
            assert list(prompt.ids) == ids and (positions_between(0, len(ids), prompt.images) == theirs).all()
            assert found.usage.prompt_tokens == len(ids)
            assert ids[: len(known)] == known, "the turn before left a checkpoint that does not begin this one"
            last = max(engine.checkpoints[-1])
            assert not any(image.start < last < image.end for image in prompt.images)
            if turn[-1]["role"] == "user":  # the thought before a result is left out of the next turn
                assert last >= prompt.images[-1].end
            known = ids[:last]


def test_anthropic(tokenizer: Tokenizer, processor: Any) -> None:
    template = ChatTemplate(real_template("qwen3_6"), {}, tokenizer.control_names)
    engine = Seeing(tokenizer=tokenizer, template=template)

    def part(piece: str) -> dict[str, Any]:
        if piece not in FILES:
            return {"type": "text", "text": piece}
        data = base64.b64encode(FILES[piece]).decode()
        return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}

    with serving(engine, Settings(port=0)) as url:
        client: Any = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
        messages = [{"role": "user", "content": [part("b"), part("What?"), part("a")]}]
        client.messages.create(model="x", max_tokens=1, messages=messages, thinking={"type": "disabled"})
    prompt = engine.prompts[-1]
    assert isinstance(prompt, ImagePrompt)
    shown = [{"role": "user", "content": [hf_part("b"), hf_part("What?"), hf_part("a")]}]
    ids, _ = hf_prompt(processor, template.source, shown, {"enable_thinking": False})
    assert list(prompt.ids) == ids
