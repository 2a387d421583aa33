"""The images of a request: data URIs and base64, checked before anything is decoded."""

from __future__ import annotations

import binascii
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trigraph.models.errors import quote
from trigraph.runtime.images.decoder import ImageError
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.reader import NO_TOWER, ImageReader
from trigraph.runtime.server.errors import ApiError

MEDIA_TYPES = ("image/jpeg", "image/png", "image/webp", "image/gif")

PART_RULE = "texts are read, and images in messages of the user and in results of tools"
"""What is said of other parts of messages."""

_CODE = "invalid_image"
_MOST_SECONDS = 60.0
_MOST_AT_ONCE = 64  # requests whose images are read: each takes one of the threads that read requests
_MOST_HEAD = 200  # characters of a data URI before its data
_readers = threading.BoundedSemaphore(_MOST_AT_ONCE)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_HEAD = re.compile(r"data:([^;,]*);base64", re.IGNORECASE)
_REMEDY = "send the image itself, as data:image/png;base64,... with its bytes in base64"


@dataclass(frozen=True)
class SentImage:
    """An image as a request has it. `place`: its field."""

    data: str
    """Base64."""
    place: str


def image_part(data: str, place: str) -> dict[str, Any]:
    """The part of a message that shows an image, given by its data in base64."""
    return {"type": "image", "image": SentImage(data, place)}


def part_of_url(url: str | None, place: str) -> dict[str, Any]:
    """The image in a data URI, or in bare base64. Raises ApiError for other URLs: nothing is fetched."""
    if url is None:
        raise ApiError(f"{place} is missing; {_REMEDY}", param=place, code="missing_required_parameter")
    scheme = _SCHEME.match(url[:_MOST_HEAD])
    if scheme is None:
        return image_part(url, place)
    if scheme[1].lower() != "data":
        raise ApiError(
            f"{place} is {quote(url)}, and this server fetches no images; {_REMEDY}", param=place, code=_CODE
        )
    end = url.find(",", 0, _MOST_HEAD)
    head = _HEAD.fullmatch(url[: max(0, end)])
    if head is None:
        raise ApiError(f"{place} is {quote(url)}, a data URI without base64; {_REMEDY}", param=place, code=_CODE)
    check_media_type(head[1], place)
    return image_part(url[end + 1 :], place)


def check_media_type(kind: str | None, place: str) -> None:
    """Raises ApiError for a type that is not one of those that are read."""
    if kind is not None and kind.lower() not in (*MEDIA_TYPES, "image/jpg"):
        raise ApiError(
            f"{place} has the media type {quote(kind)}; {', '.join(MEDIA_TYPES)} are read", param=place, code=_CODE
        )


def read_images(reader: ImageReader | None, images: Sequence[SentImage], most: int) -> list[ResizedImage]:
    """The images of a request as the model sees them. It takes long: a thread's work.

    `most`: how many there may be. Raises ApiError for a model that reads text only, for more images, for one that
    cannot be read or exceeds a limit, and when too many requests have theirs read already.
    """
    if not images:
        return []
    first = images[0].place
    if reader is None:
        raise ApiError(f"{first} is an image, and {NO_TOWER}", param=first)
    if len(images) > most:
        extra = images[most].place
        raise ApiError(
            f"the request has {len(images)} images, more than the limit of {most}; leave some out",
            param=extra,
            code=_CODE,
        )
    files = [_bytes(image, reader.limits.bytes) for image in images]
    if not _readers.acquire(blocking=False):
        raise ApiError("the images of too many requests are read already; try again later", 429, code="too_busy")
    try:
        return _decoded(reader, images, files)
    finally:
        _readers.release()


def _decoded(reader: ImageReader, images: Sequence[SentImage], files: Sequence[bytes]) -> list[ResizedImage]:
    decoded, until = [], time.monotonic() + _MOST_SECONDS
    for image, data in zip(images, files, strict=True):
        if time.monotonic() > until:
            raise ApiError(
                f"reading the images takes more than {_MOST_SECONDS:g} s, the limit; send fewer or smaller ones",
                param=image.place,
                code=_CODE,
            )
        try:
            decoded.append(reader.read(data, image.place))
        except ImageError as error:
            raise ApiError(str(error), param=image.place, code=_CODE) from error
    return decoded


def _bytes(image: SentImage, most: int) -> bytes:
    place = image.place
    if (size := len(image.data) // 4 * 3) > most + 2:
        raise ApiError(
            f"{place} has {size:,} bytes, more than the limit of {most:,}; make the image smaller",
            param=place,
            code=_CODE,
        )
    try:
        data = binascii.a2b_base64(image.data, strict_mode=True)
    except ValueError as error:
        raise ApiError(
            f"{place} is not base64 ({str(error)[:80]}); send it without spaces and line breaks, padded with =",
            param=place,
            code=_CODE,
        ) from error
    if not data:
        raise ApiError(f"{place} is empty; {_REMEDY}", param=place, code=_CODE)
    return data
