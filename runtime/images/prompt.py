"""Prompts with images: what a chat template is given in their places, and what stands there among the tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trigraph.models.errors import TrigraphError
from trigraph.models.rope_positions import ImageSpan
from trigraph.runtime.images.image import ResizedImage, prefix_keys
from trigraph.runtime.text.history import Message
from trigraph.runtime.text.tokenizer import Tokenizer

IMAGE_TOKEN = "<|image_pad|>"
PLACEHOLDER: Mapping[str, str] = {"type": "image"}
"""What a template sees of an image."""


class PromptLengthError(TrigraphError):
    """A prompt that has no tokens, or more than the context."""

    @classmethod
    def of(cls, tokens: int, context: int, *, more: bool = False) -> PromptLengthError:
        """An error that says how many tokens a prompt has; `more`: or yet more."""
        found = f"the prompt has {'more than ' if more else ''}{tokens} tokens; it must have 1 to {context}, the "
        return cls(f"{found}loaded context{'; shorten it, or load with a larger context' if tokens else ''}")


@dataclass(frozen=True)
class ImagePrompt:
    """Tokens of a prompt, and its images: what an engine takes in place of token ids."""

    ids: tuple[int, ...]
    """With the image token in every place of an image."""
    images: tuple[ImageSpan, ...] = ()
    """Where the images stand, in order."""
    pixels: tuple[ResizedImage, ...] = ()
    """What they show."""

    def __post_init__(self) -> None:
        """Raises TrigraphError unless there are pixels for each place of an image, in order and of its size."""
        sizes = [(image.height, image.width) for image in self.pixels]
        if sizes != [(image.height, image.width) for image in self.images]:
            raise TrigraphError(
                f"a prompt has places for {len(self.images)} images, and {len(sizes)} are given, or in other sizes; "
                "give the pixels of each image, in order"
            )
        ends = [0, *(image.end for image in self.images), len(self.ids)]
        starts = [*(image.start for image in self.images), len(self.ids)]
        if any(start < end for start, end in zip(starts, ends, strict=False)) or ends[-2] > len(self.ids):
            raise TrigraphError("the images of a prompt overlap, or reach beyond its tokens; give them in order")

    @property
    def written(self) -> list[int]:
        """The ids as a template wrote them: with one image token for each image."""
        if not self.images:
            return [*self.ids]
        ends = [0, *(image.end for image in self.images)]
        starts = [*(image.start + 1 for image in self.images), len(self.ids)]
        return [token for end, start in zip(ends, starts, strict=True) for token in self.ids[end:start]]

    def length_of(self, written: int) -> int:
        """How many tokens the first ones of `written` stand for; an image among them is there in full."""
        for image in self.images:
            written += image.tokens - 1 if written > image.start else 0
        return written


@dataclass(frozen=True)
class PlacedImage:
    """An image among the tokens of a sequence."""

    span: ImageSpan
    digest: bytes
    """A hash of everything that its rows depend on."""


def image_keys(images: Iterable[PlacedImage], ids: Sequence[int]) -> list[int]:
    """The tokens of a sequence: ids, and in the places of images keys of what is there, which are negative."""
    tokens = list(ids)
    for image in images:
        tokens[image.span.start : image.span.end] = prefix_keys(image.digest, image.span.tokens).tolist()
    return tokens


def same_images(one: Iterable[PlacedImage], other: Iterable[PlacedImage], length: int) -> bool:
    """Whether the first `length` tokens of two sequences show the same images, as far as they do."""
    return _begun(one, length) == _begun(other, length)


def _begun(images: Iterable[PlacedImage], length: int) -> list[PlacedImage]:
    return [image for image in images if image.span.start < length]


def without_images(messages: Sequence[Message]) -> tuple[list[Message], list[Any]]:
    """Messages for a template, and the images that were in them, in order.

    A part of a message's content whose type is `image` holds one as its `image`, whatever that is; the template gets a
    placeholder. Raises TrigraphError for such a part without an image.
    """
    images: list[Any] = []
    return [_without(message, images) for message in messages], images


def _without(message: Message, images: list[Any]) -> Message:
    content = message.get("content")
    if not isinstance(content, (list, tuple)):
        return message
    here = [isinstance(part, Mapping) and part.get("type") == "image" for part in content]
    images += [part.get("image") for part, is_image in zip(content, here, strict=True) if is_image]
    if any(image is None for image in images):
        raise TrigraphError(
            f"a message of role {message.get('role')!r} has a part of type 'image' without an image; "
            "give it one as its 'image'"
        )
    return {**message, "content": [PLACEHOLDER if here[at] else part for at, part in enumerate(content)]}


def prompt_with_images(
    text: str,
    tokenizer: Tokenizer,
    images: Sequence[ResizedImage],
    *,
    before: Sequence[int] = (),
    most: int | None = None,
) -> ImagePrompt:
    """A rendered prompt in tokens, each image token in it repeated for the tokens of an image, in order.

    `before`: ids, as `written`, that `text` follows, with the first images. `most`: tokens that the prompt may have.
    Raises TrigraphError for more, for a vocabulary without image tokens, and unless there is one for each image.
    """
    room = None if most is None else most - len(before) - sum(image.tokens - 1 for image in images)
    ids = [*before, *tokenizer.encode(text, start=not before, most=None if room is None else max(0, room))]
    if room is not None and len(ids) - len(before) > room:
        raise PromptLengthError(
            f"the prompt has more than {most} tokens, the loaded context, of which its images take "
            f"{sum(image.tokens for image in images)}; shorten it, leave images out, or load with a larger context"
        )
    pad = tokenizer.id_of(IMAGE_TOKEN)
    if pad is None:
        if images:
            raise TrigraphError(
                f"the vocabulary has no token {IMAGE_TOKEN}; leave the images out, or use another model"
            )
        return ImagePrompt(tuple(ids))
    if (count := ids.count(pad)) != len(images):
        raise TrigraphError(
            f"the prompt has {count} places for images ({IMAGE_TOKEN}), and {len(images)} images are given; "
            "give one for each, and use a chat template that reads images"
        )
    found: list[int] = []
    spans: list[ImageSpan] = []
    start = 0
    for image in images:
        place = ids.index(pad, start)
        found += ids[start:place]
        spans.append(ImageSpan(len(found), image.height, image.width))
        found += [pad] * image.tokens
        start = place + 1
    return ImagePrompt((*found, *ids[start:]), tuple(spans), tuple(images))


def spelt(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of a prompt, in which a run of image tokens is one."""
    pad = tokenizer.id_of(IMAGE_TOKEN)
    return tokenizer.spell(token for at, token in enumerate(ids) if token != pad or at == 0 or ids[at - 1] != pad)


def placed(ids: Sequence[int], tokenizer: Tokenizer, images: Sequence[ResizedImage]) -> ImagePrompt:
    """The prompt whose ids these are, with the image tokens of each image. Raises ValueError for other images."""
    pad, spans, start = tokenizer.id_of(IMAGE_TOKEN), list[ImageSpan](), 0
    for image in images:
        spans.append(ImageSpan([*ids].index(pad, start), image.height, image.width))  # type: ignore[arg-type]
        start = spans[-1].end
    if [*ids].count(pad) != sum(image.tokens for image in images):  # type: ignore[arg-type]
        raise ValueError("images and tokens differ")
    return ImagePrompt(tuple(ids), tuple(spans), tuple(images))
