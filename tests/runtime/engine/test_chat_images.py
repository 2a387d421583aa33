"""Conversations that show images, on a package with a vision tower: text, reuse, files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support.models.seeing import SeeingPackages
from support.pictures.pictures import encode, pixels
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.engine.chat import Reply
from trigraph.runtime.images.prompt import placed, prompt_with_images, without_images
from trigraph.runtime.text.template import ChatTemplate

OPTIONS = Options(Sampling(temperature=0), max_tokens=12)
FIRST, SECOND = pixels(120, 200), pixels(300, 90, 1)


@pytest.fixture(scope="module")
def package(seeing: SeeingPackages) -> Path:
    return seeing("tiny-moe", "Q8_0")


@pytest.fixture(scope="module")
def engine(package: Path) -> Iterator[Engine]:
    with load(package, threads=1, context=2048) as engine:
        yield engine


def ids_of(reply: Any) -> list[int]:
    for _ in reply:
        pass
    return list((reply.request if isinstance(reply, Reply) else reply).ids)


def test_every_form_has_the_same_answer(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(data := encode(FIRST, "PNG"))
    part = {"type": "image", "image": data}
    answers = [
        ids_of(engine.chat().say("What?", OPTIONS, images=[tmp_path / "a.png"])),
        ids_of(engine.chat().say("What?", OPTIONS, images=[FIRST])),
        ids_of(engine.chat(images=[Image.open(io.BytesIO(data))]).say("What?", OPTIONS)),
        ids_of(engine.chat().say([part, {"type": "text", "text": "What?"}], OPTIONS)),
    ]
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}]
    text = engine.chat_template().render(messages)
    image = engine.model.images.read(data)
    engine.cache.clear()
    answers.append(ids_of(engine.generate(prompt_with_images(text, engine.tokenizer, [image]), OPTIONS)))
    assert len(answers[0]) == 12 and all(answer == answers[0] for answer in answers)
    assert answers[0] != ids_of(engine.chat().say("What?", OPTIONS, images=[SECOND]))


def test_turns_compute_only_what_is_new(engine: Engine) -> None:
    engine.cache.clear()
    chat = engine.chat("Be brief.")
    first = chat.say("What?", OPTIONS, images=[FIRST])
    ids_of(first)
    length = chat.length
    second = chat.say("And these?", OPTIONS, images=[SECOND, FIRST])
    found = ids_of(second)
    assert second.request.stats.reused_tokens >= len(first.request.prompt)
    assert second.request.prompt[: len(first.request.prompt)] == first.request.prompt and chat.length > length
    # The same prompt from nothing.
    engine.cache.clear()
    images = without_images(chat.messages)[1]
    again = engine.generate(placed(second.request.prompt, engine.tokenizer, images), OPTIONS)
    assert ids_of(again) == found
    ids_of(chat.regenerate(OPTIONS))
    assert chat.messages[-1]["role"] == "assistant" and len(chat.messages) == 5
    chat.reset()
    assert [message["role"] for message in chat.messages] == ["system"]


def test_attached_images_wait_for_a_message(engine: Engine) -> None:
    chat = engine.chat()
    image = chat.attach(FIRST)
    assert chat.attached == (image,) and image.source == (120, 200)
    chat.detach()
    chat.attach(SECOND)
    ids_of(chat.say("What?", OPTIONS, images=[FIRST]))
    content = chat.messages[0]["content"]
    assert [part["type"] for part in content] == ["image", "image", "text"] and not chat.attached
    assert [part["image"].source for part in content[:2]] == [(300, 90), (120, 200)]
    with pytest.raises(TrigraphError, match="cannot be read"):
        chat.say("What?", images=["nothing.png"])
    assert len(chat.messages) == 2


def test_saved_and_loaded(package: Path, engine: Engine, tmp_path: Path) -> None:
    engine.cache.clear()
    chat = engine.chat(images=[FIRST])
    ids_of(chat.say("What?", OPTIONS))
    ids_of(chat.say("And this?", OPTIONS, images=[SECOND]))
    chat.save(tmp_path / "a.session")
    length, last = chat.length, ids_of(chat.say("Sure?", OPTIONS))
    with load(package, threads=1, context=2048) as other:
        again = other.chat()
        again.load(tmp_path / "a.session")
        assert again.length == length and len(again.messages) == 4
        image = again.messages[0]["content"][0]["image"]
        np.testing.assert_array_equal(image.pixels, chat.messages[0]["content"][0]["image"].pixels)
        reply = again.say("Sure?", OPTIONS)
        assert ids_of(reply) == last and reply.request.stats.reused_tokens >= length - 1


def test_a_session_file_with_other_images(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = engine.chat(images=[FIRST])
    ids_of(chat.say("What?", OPTIONS))
    chat.messages = [{**chat.messages[0], "content": "What?"}, *chat.messages[1:]]
    chat.save(tmp_path / "a.session")
    with pytest.raises(TrigraphError, match=r"a\.session: is damaged: its images cannot be read \(images and tokens"):
        engine.chat().load(tmp_path / "a.session")


def test_images_in_results_of_tools(engine: Engine) -> None:
    chat = engine.chat()
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": {}}}
    chat.messages = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    reply = chat.give([[{"type": "image", "image": FIRST}, {"type": "text", "text": "closer"}]], OPTIONS)
    ids_of(reply)
    assert chat.messages[2]["content"][0]["image"].source == (120, 200)
    assert len(reply.request.prompt) > chat.messages[2]["content"][0]["image"].tokens


def test_images_that_outgrow_the_context(engine: Engine) -> None:
    chat = engine.chat()
    with pytest.raises(TrigraphError, match=r"more than 2048 tokens, the loaded context, of which its images"):
        chat.say("What?", images=[pixels(900, 900), pixels(900, 900), pixels(900, 900)])
    assert not chat.messages


def test_limits_of_an_image(package: Path) -> None:
    with load(package, threads=1, context=2048, image_tokens=64) as small:
        assert small.chat().attach(pixels(900, 900)).tokens == 64
    with pytest.raises(TrigraphError, match="tokens of an image is 63; it must be from 64 to 16384"):
        load(package, image_tokens=63)


def test_a_template_without_images(engine: Engine) -> None:
    plain = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {}, engine.tokenizer.control_names)
    other = Engine(replace(engine.model, template=plain))
    with pytest.raises(TrigraphError, match=r"the prompt has 0 places for images .* use a chat template that reads"):
        other.chat().say("What?", images=[FIRST])
    other.close()


def test_a_model_that_reads_text_only(tiny_package: Path) -> None:
    with load(tiny_package, threads=1) as engine:
        assert not engine.supports_images
        for show in (lambda: engine.chat(images=[FIRST]), lambda: engine.chat().say("What?", images=[FIRST])):
            with pytest.raises(TrigraphError, match="the model reads text only; it reads images with its mmproj"):
                show()
