"""Images over HTTP by the official clients: what the engine is given, and what clients are told."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2 as httpx
import openai
import pytest

from support.servers.seeing_server import Seeing, base64_of, chat_image, say, uri
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.prompt import ImagePrompt

MEDIA = ("jpeg", "png", "webp", "gif")
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.fixture(scope="module")
def client(sighted_url: str) -> Any:
    return openai.OpenAI(base_url=f"{sighted_url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def claude(sighted_url: str) -> Any:
    return anthropic.Anthropic(base_url=sighted_url, api_key="none", max_retries=0)


def shown(sighted: Seeing) -> tuple[str, list[ResizedImage]]:
    """The text of the last prompt, an image written once, and its images."""
    prompt = sighted.prompts[-1]
    assert isinstance(prompt, ImagePrompt)
    return sighted.tokenizer.spell(prompt.written), list(prompt.pixels)


SEEN = "<|vision_start|><|image_pad|><|vision_end|>"


@pytest.mark.parametrize("kind", MEDIA)
@pytest.mark.parametrize("bare", [False, True])
def test_chat_completions(client: Any, sighted: Seeing, kind: str, bare: bool) -> None:
    given = base64_of(kind) if bare else uri(kind)
    content = [chat_image(given), say("What is this?")]
    found = client.chat.completions.create(model="x", messages=[{"role": "user", "content": content}])
    assert found.choices[0].message.content == "Yes."
    text, images = shown(sighted)
    assert text.endswith(f"<|user|>{SEEN}What is this?<|end|><|assistant|>")
    (image,) = images
    assert image.source == (40, 56) and image.tokens == 70
    prompt = sighted.prompts[-1]
    assert isinstance(prompt, ImagePrompt) and found.usage.prompt_tokens == len(prompt.ids) > 70
    assert found.usage.prompt_tokens_details.image_tokens == 70
    # Later turns begin with all of this one, and none within an image.
    assert all(not image.start < end < image.end for end in sighted.checkpoints[-1] for image in prompt.images)
    assert max(sighted.checkpoints[-1]) > prompt.images[0].end


def test_several_turns_and_results_of_tools(client: Any, sighted: Seeing) -> None:
    messages = [
        {"role": "user", "content": [say("A "), chat_image(uri("png")), say(" and "), chat_image(uri("jpeg turned"))]},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": [chat_image(uri("gif")), say("closer")]},
    ]
    client.chat.completions.create(model="x", messages=messages)
    text, images = shown(sighted)
    assert f"<|user|>A {SEEN} and {SEEN}<|end|>" in text and f"<|tool|>{SEEN}closer<|end|>" in text
    assert [image.source for image in images] == [(40, 56), (56, 40), (40, 56)]


def test_streams_and_counts(client: Any, sighted_url: str) -> None:
    messages: Any = [{"role": "user", "content": [chat_image(uri()), say("Hi")]}]
    chunks = [*client.chat.completions.create(model="x", messages=messages, stream=True)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Yes."
    counted = httpx.post(f"{sighted_url}/tokenize", json={"messages": messages}).json()
    usage = client.chat.completions.create(model="x", messages=messages).usage
    assert counted["count"] == usage.prompt_tokens and counted["tokens"].count(260) == 70
    written = httpx.post(f"{sighted_url}/apply-template", json={"messages": messages}).json()["prompt"]
    assert written.count("<|image_pad|>") == 1


def test_responses(client: Any, sighted: Seeing) -> None:
    image = {"type": "input_image", "image_url": uri(), "detail": "auto"}
    asked: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "See"}, image]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [image, {"type": "input_text", "text": "there"}]},
    ]
    found = client.responses.create(model="x", input=asked)
    assert found.output_text == "Yes."
    text, images = shown(sighted)
    assert f"<|user|>See{SEEN}<|end|>" in text and f"<|tool|>{SEEN}there<|end|>" in text and len(images) == 2
    assert found.usage.input_tokens == client.responses.input_tokens.count(model="x", input=asked).input_tokens > 140


def test_anthropic(claude: Any, sighted: Seeing) -> None:
    def image(kind: str) -> dict[str, Any]:
        return {"type": "image", "source": {"type": "base64", "media_type": f"image/{kind}", "data": base64_of(kind)}}

    messages: Any = [
        {"role": "user", "content": [image("webp"), say("One"), say("two"), image("gif")]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [say("r"), image("png")]}]},
    ]
    tools: Any = [{"name": "look", "input_schema": {"type": "object"}}]
    found = claude.messages.create(model="x", max_tokens=9, messages=messages, tools=tools)
    assert found.content[0].text == "Yes."
    text, images = shown(sighted)
    assert f"<|user|>{SEEN}One\ntwo{SEEN}<|end|>" in text and f"<|tool|>r{SEEN}<|end|>" in text and len(images) == 3
    counted = claude.messages.count_tokens(model="x", messages=messages, tools=tools).input_tokens
    assert counted == found.usage.input_tokens + found.usage.cache_read_input_tokens > 210


def test_one_completion_more_than_once(client: Any, sighted: Seeing) -> None:
    messages: Any = [{"role": "user", "content": [chat_image(uri())]}]
    found = client.chat.completions.create(model="x", messages=messages, n=2)
    assert len(found.choices) == 2
    first, second = sighted.prompts[-2:]
    assert first is second


def test_the_model_says_that_it_reads_images(client: Any, sighted_url: str) -> None:
    (model,) = client.models.list().data
    assert model.model_dump()["architecture"]["input_modalities"] == ["text", "image"]
    assert model.model_dump()["meta"]["images"] == {"most": 3, "min_tokens": 64, "max_tokens": 100}
    assert httpx.get(f"{sighted_url}/props").json()["modalities"]["vision"] is True


def test_an_image_token_that_a_user_types_is_text(client: Any, sighted: Seeing) -> None:
    content = [say("What is <|image_pad|>?"), chat_image(uri())]
    client.chat.completions.create(model="x", messages=[{"role": "user", "content": content}])
    text, images = shown(sighted)
    assert len(images) == 1 and text.count("<|image_pad|>") == 1
    client.chat.completions.create(model="x", messages=[{"role": "user", "content": "<|image_pad|>"}])
    assert sighted.prompts[-1].count(260) == 0  # type: ignore[union-attr]
