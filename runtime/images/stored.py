"""Messages with images as JSON: what a session file keeps of a conversation."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trigraph.models.errors import TrigraphError
from trigraph.models.vision.config import TOKEN
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.limits import LARGEST
from trigraph.runtime.text.history import Message

_MOST_PIXELS = LARGEST * TOKEN**2
_MOST_CHARACTERS = 64 << 20  # a file's header holds 100 million


def as_json(messages: Sequence[Message]) -> list[Message]:
    """The messages with their images as JSON values. Raises TrigraphError when these are too large for a file."""
    messages_as_json = [_with_images(message, _written) for message in messages]
    size = sum(len(part["image"]["pixels"]) for message in messages_as_json for part in _images(message))
    if size > _MOST_CHARACTERS:
        raise TrigraphError(
            f"the images of the conversation take {size:,} bytes, and a file keeps at most {_MOST_CHARACTERS:,}; "
            "/reset, or start over with fewer images"
        )
    return messages_as_json


def from_json(messages: Sequence[Message]) -> list[Message]:
    """What `as_json` was given. Raises ValueError for what it does not return."""
    return [_with_images(message, _read) for message in messages]


def _with_images(message: Message, convert: Callable[[Any], Any]) -> Message:
    if not _images(message):
        return message
    parts = [{**part, "image": convert(part["image"])} if _is_image(part) else part for part in message["content"]]
    return {**message, "content": parts}


def _images(message: Message) -> list[Any]:
    content = message.get("content")
    return [*filter(_is_image, content)] if isinstance(content, list | tuple) else []


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image" and "image" in part


def _written(image: ResizedImage) -> dict[str, Any]:
    pixels = base64.b64encode(zlib.compress(image.pixels.tobytes(), 1)).decode()
    return {"height": image.height, "width": image.width, "source": [*image.source], "pixels": pixels}


def _read(value: Any) -> ResizedImage:
    if not isinstance(value, Mapping) or not isinstance(pixels := value.get("pixels"), str):
        raise ValueError("an image is not an object")
    sides: list[Any] = [value.get("height"), value.get("width"), *value.get("source", ())]
    if len(sides) != 4 or not all(type(side) is int and 0 < side < 1 << 31 for side in sides):
        raise ValueError("an image has a wrong size")
    height, width = sides[0] * TOKEN, sides[1] * TOKEN
    if height * width > _MOST_PIXELS:
        raise ValueError("an image is too large")
    try:
        unpacked = zlib.decompressobj().decompress(base64.b64decode(pixels, validate=True), 3 * height * width + 1)
    except zlib.error as error:
        raise ValueError("an image is damaged") from error
    return ResizedImage(np.frombuffer(unpacked, np.uint8).reshape(height, width, 3), (sides[2], sides[3]))
