"""Images that a server refuses, with which words, and damaged files."""

from __future__ import annotations

import base64
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx2 as httpx
import openai
import pytest

from support.fakes.engine import assert_settled
from support.pictures.pictures import encode, pixels
from support.servers.scripted import serving
from support.servers.seeing_server import KINDS, Seeing, chat_image, say, uri
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.reader import ImageReader
from trigraph.runtime.server.settings import Settings
from trigraph.runtime.text.template import ChatTemplate


@pytest.fixture(scope="module")
def client(sighted_url: str) -> Any:
    return openai.OpenAI(base_url=f"{sighted_url}/v1", api_key="none", max_retries=0)


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
def test_refused(client: Any, sighted: Seeing, case: str) -> None:
    given, message = BAD_URLS[case]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="x", messages=[{"role": "user", "content": [chat_image(given)]}])
    assert message in caught.value.message and caught.value.param == FIELD and caught.value.code == "invalid_image"
    assert len(caught.value.message) < 600
    assert_settled(sighted.engine)


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
def test_refused_parts(sighted_url: str, case: str) -> None:
    path, body, message = BAD_BODIES[case]
    answer = httpx.post(f"{sighted_url}{path}", json={"max_tokens": 9, **body} if path == "/v1/messages" else body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_a_body_that_is_too_large(sighted_url: str) -> None:
    content = [chat_image("A" * 1_100_000)]
    answer = httpx.post(f"{sighted_url}/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]})
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
        assert "mmproj-*.gguf" in message
        (model,) = httpx.get(f"{url}/v1/models").json()["data"]
        assert model["architecture"]["input_modalities"] == ["text"] and "images" not in model["meta"]
        assert httpx.get(f"{url}/props").json()["modalities"]["vision"] is False


def test_a_template_without_images() -> None:
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


def test_damaged_images_do_no_harm(sighted_url: str, sighted: Seeing) -> None:
    """Of a few hundred files with flipped, missing and repeated bytes each is read or refused; the server goes on."""
    rng = random.Random(5)
    answers = {200: 0, 400: 0}
    with httpx.Client(base_url=sighted_url, timeout=60) as http:
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
    assert_settled(sighted.engine)


def held_reader(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Set when an image begins to be read, and to be set for it to go on."""
    entered, held, read = threading.Event(), threading.Event(), ImageReader.read

    def slow(reader: ImageReader, given: Any, name: str = "") -> ResizedImage:
        entered.set()
        assert held.wait(60)
        return read(reader, given, name)

    monkeypatch.setattr(ImageReader, "read", slow)
    return entered, held


def test_other_requests_go_on_while_an_image_is_read(sighted_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, held = held_reader(monkeypatch)
    body = {"messages": [{"role": "user", "content": [chat_image(uri("gif"))]}]}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx.post, f"{sighted_url}/v1/chat/completions", json=body, timeout=90)
        assert entered.wait(60)
        text = {"messages": [{"role": "user", "content": "Hi"}]}
        assert httpx.get(f"{sighted_url}/health").status_code == 200
        assert httpx.post(f"{sighted_url}/v1/chat/completions", json=text).status_code == 200
        held.set()
        assert answer.result().status_code == 200


def test_the_time_of_all_images_is_limited(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trigraph.runtime.server.images._MOST_SECONDS", -1.0)
    with pytest.raises(openai.BadRequestError, match=r"reading the images takes more than -1 s, the limit; send fewer"):
        client.chat.completions.create(model="x", messages=[{"role": "user", "content": [chat_image(uri())]}])


def test_images_of_too_many_requests(sighted_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They took all threads that read requests, so that no other was answered."""
    monkeypatch.setattr("trigraph.runtime.server.images._readers", threading.BoundedSemaphore(1))
    entered, held = held_reader(monkeypatch)
    body = {"messages": [{"role": "user", "content": [chat_image(uri("gif"))]}]}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx.post, f"{sighted_url}/v1/chat/completions", json=body, timeout=90)
        assert entered.wait(60)
        refused = httpx.post(f"{sighted_url}/v1/chat/completions", json=body)
        held.set()
        assert answer.result().status_code == 200
    assert refused.status_code == 429 and "images of too many requests" in refused.json()["error"]["message"]
    assert httpx.post(f"{sighted_url}/v1/chat/completions", json=body).status_code == 200
