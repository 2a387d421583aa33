"""What the metadata of a session file says, read with checks."""

from __future__ import annotations

import dataclasses
from typing import Any

from trigraph.models.rope_positions import ImageSpan
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.images.prompt import PlacedImage
from trigraph.runtime.text.template import Message

_MOST_IMAGE_TOKENS = 1 << 20  # far more than an image has


def image_fields(image: PlacedImage) -> list[int | str]:
    """An image as JSON has it."""
    return [image.span.start, image.span.height, image.span.width, image.digest.hex()]


def read_images(value: Any) -> tuple[PlacedImage, ...]:
    """Raises TypeError or ValueError for what is not a list of `image_fields`."""
    found = []
    for start, height, width, digest in value:
        if not all(type(number) is int for number in (start, height, width)) or min(start, height - 1, width - 1) < 0:
            raise ValueError
        if height * width > _MOST_IMAGE_TOKENS:
            raise ValueError
        found.append(PlacedImage(ImageSpan(start, height, width), bytes.fromhex(digest)))
    return tuple(found)


def read_messages(value: Any) -> list[Message]:
    """Raises ValueError for what is not a list of messages."""
    for message in value:
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            raise ValueError
        content = message.get("content")
        if not (isinstance(content, str) or (isinstance(content, list) and all(isinstance(p, dict) for p in content))):
            raise ValueError
    return list(value)


def read_identity(value: Any) -> ModelIdentity:
    """Raises TypeError or ValueError for what is not the description of a model."""
    found = ModelIdentity(**value)
    if [type(item) for item in dataclasses.astuple(found)] != [type(i) for i in dataclasses.astuple(ModelIdentity())]:
        raise ValueError
    return found
