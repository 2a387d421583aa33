"""Images over HTTP: the official clients, what is refused and with which words, and damaged files."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import anthropic
import httpx2 as httpx
import openai
import pytest

from support.fake_engine import assert_settled
from support.pictures import encode, every_kind, pixels
from support.seeing_server import Seeing
from support.server import serving
from trigraph.runtime import Options, Sampling
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.limits import ImageLimits
from trigraph.runtime.images.prompt import ImagePrompt
from trigraph.runtime.server.settings import Settings

KINDS = every_kind()
MEDIA = {"jpeg": "image/jpeg", "png": "image/png", "webp": "image/webp", "gif": "image/gif"}
PIXEL_LIMIT = 1_000_000
GREEDY = Settings(port=0, defaults=Options(Sampling(temperature=0)))
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def base64_of(kind: str = "png") -> str:
    return base64.b64encode(KINDS[kind]).decode()


def uri(kind: str = "png") -> str:
    return f"data:{MEDIA[kind.split()[0]]};base64,{base64_of(kind)}"


def chat_image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


def say(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


@pytest.fixture(scope="module")
def engine() -> Seeing:
    return Seeing(limits=ImageLimits(tokens=100, pixels=PIXEL_LIMIT, bytes=200_000))


@pytest.fixture(scope="module")
def url(engine: Seeing) -> Iterator[str]:
    with serving(engine, replace(GREEDY, model="seeing", max_images=3, max_body=1_000_000)) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def claude(url: str) -> Any:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


def shown(engine: Seeing) -> tuple[str, list[ResizedImage]]:
    """The text of the last prompt, an image written once, and its images."""
    prompt = engine.prompts[-1]
    assert isinstance(prompt, ImagePrompt)
    return engine.tokenizer.spell(prompt.written), list(prompt.pixels)


SEEN = "<|vision_start|><|image_pad|><|vision_end|>"


@pytest.mark.parametrize("kind", MEDIA)
@pytest.mark.parametrize("bare", [False, True])
def test_chat_completions(client: Any, engine: Seeing, kind: str, bare: bool) -> None:
    given = base64_of(kind) if bare else uri(kind)
    content = [chat_image(given), say("What is this?")]
    found = client.chat.completions.create(model="x", messages=[{"role": "user", "content": content}])
    assert found.choices[0].message.content == "Yes."
    text, images = shown(engine)
    assert text.endswith(f"<|user|>{SEEN}What is this?<|end|><|assistant|>")
    (image,) = images
    assert image.source == (40, 56) and image.tokens == 70
    prompt = engine.prompts[-1]
    assert isinstance(prompt, ImagePrompt) and found.usage.prompt_tokens == len(prompt.ids) > 70
    assert found.usage.prompt_tokens_details.image_tokens == 70
    # Later turns begin with all of this one, and none within an image.
    assert all(not image.start < end < image.end for end in engine.checkpoints[-1] for image in prompt.images)
    assert max(engine.checkpoints[-1]) > prompt.images[0].end


def test_several_turns_and_results_of_tools(client: Any, engine: Seeing) -> None:
    messages = [
        {"role": "user", "content": [say("A "), chat_image(uri("png")), say(" and "), chat_image(uri("jpeg turned"))]},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": [chat_image(uri("gif")), say("closer")]},
    ]
    client.chat.completions.create(model="x", messages=messages)
    text, images = shown(engine)
    assert f"<|user|>A {SEEN} and {SEEN}<|end|>" in text and f"<|tool|>{SEEN}closer<|end|>" in text
    assert [image.source for image in images] == [(40, 56), (56, 40), (40, 56)]


def test_streams_and_counts(client: Any, url: str) -> None:
    messages: Any = [{"role": "user", "content": [chat_image(uri()), say("Hi")]}]
    chunks = [*client.chat.completions.create(model="x", messages=messages, stream=True)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Yes."
    counted = httpx.post(f"{url}/tokenize", json={"messages": messages}).json()
    usage = client.chat.completions.create(model="x", messages=messages).usage
    assert counted["count"] == usage.prompt_tokens and counted["tokens"].count(260) == 70
    written = httpx.post(f"{url}/apply-template", json={"messages": messages}).json()["prompt"]
    assert written.count("<|image_pad|>") == 1


def test_responses(client: Any, engine: Seeing) -> None:
    image = {"type": "input_image", "image_url": uri(), "detail": "auto"}
    asked: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "See"}, image]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [image, {"type": "input_text", "text": "there"}]},
    ]
    found = client.responses.create(model="x", input=asked)
    assert found.output_text == "Yes."
    text, images = shown(engine)
    assert f"<|user|>See{SEEN}<|end|>" in text and f"<|tool|>{SEEN}there<|end|>" in text and len(images) == 2
    assert found.usage.input_tokens == client.responses.input_tokens.count(model="x", input=asked).input_tokens > 140


def test_anthropic(claude: Any, engine: Seeing) -> None:
    def image(kind: str) -> dict[str, Any]:
        return {"type": "image", "source": {"type": "base64", "media_type": MEDIA[kind], "data": base64_of(kind)}}

    messages: Any = [
        {"role": "user", "content": [image("webp"), say("One"), say("two"), image("gif")]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [say("r"), image("png")]}]},
    ]
    tools: Any = [{"name": "look", "input_schema": {"type": "object"}}]
    found = claude.messages.create(model="x", max_tokens=9, messages=messages, tools=tools)
    assert found.content[0].text == "Yes."
    text, images = shown(engine)
    assert f"<|user|>{SEEN}One\ntwo{SEEN}<|end|>" in text and f"<|tool|>r{SEEN}<|end|>" in text and len(images) == 3
    counted = claude.messages.count_tokens(model="x", messages=messages, tools=tools).input_tokens
    assert counted == found.usage.input_tokens + found.usage.cache_read_input_tokens > 210


def test_one_completion_more_than_once(client: Any, engine: Seeing) -> None:
    messages: Any = [{"role": "user", "content": [chat_image(uri())]}]
    found = client.chat.completions.create(model="x", messages=messages, n=2)
    assert len(found.choices) == 2
    first, second = engine.prompts[-2:]
    assert first is second


def test_the_model_says_that_it_reads_images(client: Any, url: str) -> None:
    (model,) = client.models.list().data
    assert model.model_dump()["architecture"]["input_modalities"] == ["text", "image"]
    assert model.model_dump()["meta"]["images"] == {"most": 3, "min_tokens": 64, "max_tokens": 100}
    assert httpx.get(f"{url}/props").json()["modalities"]["vision"] is True


def test_an_image_token_that_a_user_types_is_text(client: Any, engine: Seeing) -> None:
    content = [say("What is <|image_pad|>?"), chat_image(uri())]
    client.chat.completions.create(model="x", messages=[{"role": "user", "content": content}])
    text, images = shown(engine)
    assert len(images) == 1 and text.count("<|image_pad|>") == 1
    client.chat.completions.create(model="x", messages=[{"role": "user", "content": "<|image_pad|>"}])
    assert engine.prompts[-1].count(260) == 0  # type: ignore[union-attr]


FIELD = "messages[0].content[0].image_url.url"
BAD_URLS: dict[str, tuple[str, str]] = {
    "http": ("http://127.0.0.1/a.png", f"{FIELD} is 'http://127.0.0.1/a.png', and this server fetches no images; send"),
    "https": ("HTTPS://example.org/a.png", "fetches no images"),
    "file": ("file:///etc/passwd", "fetches no images"),
    "blob": ("blob:null/1", "fetches no images"),
    "an http URL by another name": ("gopher://a", "fetches no images"),
    "not base64": ("data:image/png,abc", "a data URI without base64; send the image itself"),
    "no comma": ("data:image/png;base64", "a data URI without base64"),
    "a parameter": ("data:image/png;charset=utf-8;base64,AAAA", "a data URI without base64"),
    "another type": ("data:image/svg+xml;base64,AAAA", "the media type 'image/svg+xml'; image/jpeg, image/png"),
    "a page": ("data:text/html;base64,AAAA", "the media type 'text/html'"),
    "no type": ("data:;base64,AAAA", "the media type ''"),
    "empty": ("data:image/png;base64,", f"{FIELD} is empty; send the image itself"),
    "nothing": ("", f"{FIELD} is empty"),
    "spaces": ("data:image/png;base64,AA AA", "is not base64 (Only base64 data is allowed); send it without spaces"),
    "of the URL-safe kind": ("AA-_", "is not base64"),
    "padding": ("AAAAA", "is not base64"),
    "more after the end": ("AA==AAAA", "is not base64 (Excess data"),
    "letters": ("dataé", "is not base64 (string argument should contain only ASCII"),
    "no image": (base64.b64encode(b"hello").decode(), f"{FIELD} cannot be read: it is not a JPEG, PNG, WebP or GIF"),
    "another format": (base64.b64encode(encode(pixels(9, 9), "BMP")).decode(), "it is not a JPEG, PNG, WebP or GIF"),
    "cut off": (base64.b64encode(KINDS["jpeg"][:-100]).decode(), "truncated"),
    "too many pixels": (
        base64.b64encode(encode(pixels(1000, 1001, channels=1)[..., 0] * 0, "PNG")).decode(),
        "it has 1001 x 1000 pixels, more than the limit of 1000000; make it smaller",
    ),
    "too many bytes": ("A" * 400_000, f"{FIELD} has 300,000 bytes, more than the limit of 200,000; make the image"),
    "narrow": (base64.b64encode(encode(pixels(1, 201), "PNG")).decode(), "sides may differ by a factor of 200"),
}


@pytest.mark.parametrize("case", BAD_URLS)
def test_refused(client: Any, engine: Seeing, case: str) -> None:
    given, message = BAD_URLS[case]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="x", messages=[{"role": "user", "content": [chat_image(given)]}])
    assert message in caught.value.message and caught.value.param == FIELD and caught.value.code == "invalid_image"
    assert len(caught.value.message) < 600
    assert_settled(engine.engine)


BAD_BODIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "no URL": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        f"{FIELD} is missing; send the image itself",
    ),
    "of the system": (
        "/v1/chat/completions",
        {"messages": [{"role": "system", "content": [chat_image(uri())]}]},
        "messages[0].content[0].type is 'image_url'; texts are read, and images in messages of the user",
    ),
    "of the assistant": (
        "/v1/chat/completions",
        {"messages": [{"role": "assistant", "content": [chat_image(uri())]}]},
        "images in messages of the user",
    ),
    "sound": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        "messages[0].content[0].type is 'input_audio'; texts are read",
    ),
    "too many": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [chat_image("AAAA")] * 4}]},
        "the request has 4 images, more than the limit of 3; leave some out",
    ),
    "a file": (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]},
        "input[0].content[0].file_id is 'file-1', and this server keeps no files; give the image as image_url",
    ),
    "an address": (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "https://a.org/b"}]}]},
        "input[0].content[0].image_url is 'https://a.org/b', and this server fetches no images",
    ),
    "neither": (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input[0].content[0].image_url is missing",
    ),
    "of a developer": (
        "/v1/responses",
        {"input": [{"role": "developer", "content": [{"type": "input_image", "image_url": uri()}]}]},
        "input[0] has a part of type 'input_image'; texts are read",
    ),
    "Anthropic's address": (
        "/v1/messages",
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://a"}}]}]},
        "messages[0].content[0].source.url is 'http://a', and this server fetches no images",
    ),
    "Anthropic's file": (
        "/v1/messages",
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}]},
        "messages[0].content[0].source has the type 'file'; send the image itself, of type base64",
    ),
    "Anthropic's without a source": (
        "/v1/messages",
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        "messages[0].content[0].source is missing",
    ),
    "Anthropic's type": (
        "/v1/messages",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": "AAAA"}}
                    ],
                }
            ]
        },
        "messages[0].content[0].source.media_type has the media type 'image/bmp'",
    ),
    "of Anthropic's assistant": (
        "/v1/messages",
        {"messages": [{"role": "assistant", "content": [{"type": "image"}]}]},
        "messages[0].content[0].type is 'image'; texts are read",
    ),
}


@pytest.mark.parametrize("case", BAD_BODIES)
def test_refused_parts(url: str, case: str) -> None:
    path, body, message = BAD_BODIES[case]
    answer = httpx.post(f"{url}{path}", json={"max_tokens": 9, **body} if path == "/v1/messages" else body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_a_body_that_is_too_large(url: str) -> None:
    content = [chat_image("A" * 1_100_000)]
    answer = httpx.post(f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]})
    assert answer.status_code == 413
    message = answer.json()["error"]["message"]
    assert "the body has 1,100," in message and "more than the limit of 1,000,000; make images smaller" in message


def test_a_model_that_reads_text_only() -> None:
    engine = Seeing()
    engine.tower = None
    content = [say("See"), chat_image(uri())]
    body = {"messages": [{"role": "user", "content": content}]}
    with serving(engine, Settings(port=0)) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json=body)
        assert answer.status_code == 400
        message = answer.json()["error"]["message"]
        assert message.startswith("messages[0].content[1].image_url.url is an image, and the model reads text only")
        assert "--mmproj" in message
        (model,) = httpx.get(f"{url}/v1/models").json()["data"]
        assert model["architecture"]["input_modalities"] == ["text"] and "images" not in model["meta"]
        assert httpx.get(f"{url}/props").json()["modalities"]["vision"] is False


def test_a_template_without_images() -> None:
    from trigraph.runtime.text.template import ChatTemplate

    engine = Seeing()
    plain = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {}, engine.tokenizer.control_names)
    engine.engine.model = replace(engine.engine.model, template=plain)
    body = {"messages": [{"role": "user", "content": [chat_image(uri())]}]}
    with serving(engine, Settings(port=0)) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "the prompt has 0 places for images (<|image_pad|>), and 1 images are given" in answer.text


def test_images_that_outgrow_the_context() -> None:
    engine = Seeing(context=120)
    body = {"messages": [{"role": "user", "content": [chat_image(uri()), chat_image(uri("gif"))]}]}
    with serving(engine, Settings(port=0)) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "maximum context length is 120 tokens, and the prompt has 1" in message
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_damaged_images_do_no_harm(url: str, engine: Seeing) -> None:
    """Of a few hundred files with flipped, missing and repeated bytes each is read or refused; the server goes on."""
    rng = random.Random(5)
    answers = {200: 0, 400: 0}
    with httpx.Client(base_url=url, timeout=60) as http:
        for _ in range(300):
            data = bytearray(rng.choice([*KINDS.values()]))
            for _ in range(rng.randint(1, 12)):
                place = rng.randrange(len(data))
                match rng.randrange(4):
                    case 0:
                        data[place] = rng.randrange(256)
                    case 1:
                        del data[place : place + rng.randint(1, 40)]
                    case 2:
                        data[place:place] = data[place : place + rng.randint(1, 40)]
                    case _:
                        data[place : place + 4] = rng.randbytes(4)
                if len(data) < 50:
                    break
            given = base64.b64encode(data).decode()
            body = {"messages": [{"role": "user", "content": [chat_image(given)]}], "max_tokens": 1}
            answer = http.post("/v1/chat/completions", json=body)
            answers[answer.status_code] += 1
            if answer.status_code == 400:
                assert answer.json()["error"]["param"] == FIELD, answer.text
        assert min(answers.values()) > 20
        assert http.get("/health").status_code == 200
        body = {"messages": [{"role": "user", "content": [chat_image(uri())]}]}
        assert http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"] == "Yes."
    assert_settled(engine.engine)
