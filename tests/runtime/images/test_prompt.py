"""Prompts with images by Qwen's real templates and vocabulary, compared with transformers' processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support.models.real_vocabulary import real_metadata, real_template
from support.pictures.image_prompts import hf_processor, hf_prompt
from support.pictures.pictures import pixels
from trigraph.models.errors import TrigraphError
from trigraph.models.gguf_file import GGUFFile
from trigraph.models.rope_positions import ImageSpan, positions_between
from trigraph.models.tokenizer import tokenizer_json
from trigraph.runtime.images import decoder_process
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.prompt import ImagePrompt, prompt_with_images, without_images
from trigraph.runtime.text.template import ChatTemplate
from trigraph.runtime.text.template_renderer import TemplateError
from trigraph.runtime.text.tokenizer import Tokenizer

TEMPLATES = ("qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8")
SIZES = {"small": (70, 100), "wide": (40, 900), "tall": (777, 333), "square": (512, 512)}
PICTURES = {name: Image.fromarray(pixels(*size)) for name, size in SIZES.items()}
AREA = 64 << 10, 1 << 20


def see(name: str) -> dict[str, Any]:
    return {"type": "image", "image": PICTURES[name]}


def say(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


CALL = {"function": {"name": "look", "arguments": {"at": "it"}}}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "text": [{"role": "user", "content": "Who are you?"}],
    "one": [{"role": "user", "content": [see("small"), say("What is this?")]}],
    "text around": [{"role": "user", "content": [say("This "), see("wide"), say(" and "), see("tall"), say("?")]}],
    "side by side": [{"role": "user", "content": [see("square"), see("small"), say("Which?")]}],
    "turns": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [see("small"), say("What is <|image_pad|> this?")]},
        {"role": "assistant", "content": "A wave.", "reasoning_content": "Hm."},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": [say("And this?"), see("tall")]},
    ],
    "of a tool": [
        {"role": "user", "content": [see("wide"), say("Look closer.")]},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": [see("square"), say("closer")]},
    ],
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(tokenizer_json(real_metadata(248320)))


def template_of(name: str, tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate(real_template(name), {}, tokenizer.control_names)


def resized(image: Image.Image) -> ResizedImage:
    height, width = decoder_process.smart_resize(image.height, image.width, 32, *AREA)
    return blank(height // 32, width // 32)


def blank(height: int, width: int) -> ResizedImage:
    """An image of so many tokens."""
    return ResizedImage(np.zeros((32 * height, 32 * width, 3), np.uint8), (height, width))


@pytest.fixture(scope="module")
def processor(tokenizer: Tokenizer) -> Any:
    return hf_processor(tokenizer, AREA)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_transformers(tokenizer: Tokenizer, processor: Any, name: str, conversation: str) -> None:
    """The same tokens and positions, thinking or not; what a user types is text."""
    messages, template = CONVERSATIONS[conversation], template_of(name, tokenizer)
    for variables in ({}, {"enable_thinking": False}):
        given, images = without_images(messages)
        seen = [resized(image) for image in images]
        found = prompt_with_images(template.render(given, variables=variables), tokenizer, seen)
        ids, theirs = hf_prompt(processor, template.source, messages, variables)
        assert list(found.ids) == ids
        np.testing.assert_array_equal(positions_between(0, len(ids), found.images), theirs)
        assert sum(image.shift for image in found.images) == theirs.max() + 1 - len(ids)


def test_places(tokenizer: Tokenizer) -> None:
    found = prompt_with_images("a<|image_pad|>b<|image_pad|>", tokenizer, [blank(2, 3), blank(1, 1)])
    pad = tokenizer.id_of("<|image_pad|>")
    assert found.images == (ImageSpan(1, 2, 3), ImageSpan(8, 1, 1))
    assert [token == pad for token in found.ids] == [False, *[True] * 6, False, True]
    assert positions_between(0, len(found.ids), found.images)[:, -2:].tolist() == [[4, 5]] * 3
    assert prompt_with_images("ab", tokenizer, []) == ImagePrompt(tuple(tokenizer.encode("ab")))


@pytest.mark.parametrize(("text", "sizes"), [("a", [(1, 1)]), ("<|image_pad|>", []), ("<|image_pad|>", [(1, 1)] * 2)])
def test_places_and_images_differ(tokenizer: Tokenizer, text: str, sizes: list[tuple[int, int]]) -> None:
    with pytest.raises(TrigraphError, match=f"has {text.count('pad')} places for images .*{len(sizes)} images are"):
        prompt_with_images(text, tokenizer, [blank(*size) for size in sizes])


def test_a_vocabulary_without_images(tiny_gguf: Path) -> None:
    tokenizer = Tokenizer(tokenizer_json(GGUFFile.open(tiny_gguf).metadata))
    with pytest.raises(TrigraphError, match=r"has no token <\|image_pad\|>; leave the images out"):
        prompt_with_images("a", tokenizer, [blank(1, 1)])
    assert prompt_with_images("a", tokenizer, []).images == ()


def test_the_template_sees_no_data(tokenizer: Tokenizer) -> None:
    messages = CONVERSATIONS["turns"]
    given, images = without_images(messages)
    assert images == [PICTURES["small"], PICTURES["tall"]]
    assert given[1]["content"][0] == {"type": "image"} and messages[1]["content"][0]["image"] is PICTURES["small"]
    assert given[0] == messages[0]
    json.dumps(given)


def test_images_that_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(TrigraphError, match="role 'user' has a part of type 'image' without an image"):
        without_images([{"role": "user", "content": [{"type": "image"}]}])
    given, _ = without_images([{"role": "system", "content": [see("small")]}, *CONVERSATIONS["text"]])
    with pytest.raises(TemplateError, match="System message cannot contain images"):
        template_of("qwen3_5_think", tokenizer).render(given)


@pytest.mark.parametrize(
    ("images", "pixels", "error"),
    [
        ((ImageSpan(1, 1, 2),), (), "places for 1 images, and 0 are given"),
        ((ImageSpan(1, 1, 2),), ((2, 1),), "in other sizes"),
        ((ImageSpan(1, 1, 2), ImageSpan(2, 1, 1)), ((1, 2), (1, 1)), "overlap"),
        ((ImageSpan(3, 1, 2),), ((1, 2),), "reach beyond its tokens"),
    ],
)
def test_prompts_that_contradict_themselves(
    images: tuple[ImageSpan, ...], pixels: tuple[tuple[int, int], ...], error: str
) -> None:
    with pytest.raises(TrigraphError, match=error):
        ImagePrompt((0, 1, 2, 3), images, tuple(blank(*size) for size in pixels))
