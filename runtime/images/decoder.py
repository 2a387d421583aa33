"""Files of images, decoded and resized in a process under limits: they come from strangers."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from trigraph.models.errors import TrigraphError
from trigraph.models.vision.config import TOKEN, VisionConfig
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.limits import ImageLimits
from trigraph.runtime.limited.process import LimitedProcess

_PROGRAM = Path(__file__).with_name("decoder_process.py")
_MAX_MEMORY = 3 << 29  # bytes of the process: 64 megapixels of WebP with transparency take almost all of it
_MAX_STARTING_SECONDS = 60.0
_QUICK_SECONDS = 2.0  # most images of 12 megapixels take less than one


class ImageError(TrigraphError):
    """An image that cannot be read, or that exceeds a limit."""


class ImageDecoder:
    """Reads JPEG, PNG, WebP and GIF files (of an animation the first frame) for one tower."""

    def __init__(self, tower: VisionConfig, limits: ImageLimits | None = None) -> None:
        self.tower, self.limits = tower, limits or ImageLimits()
        self._quick, self._slow = _Process(), _Process()

    def decode(self, data: bytes, name: str = "the image", size: tuple[int, int] | None = None) -> ResizedImage:
        """The image in a file's bytes; `name` is what errors call it. `size`: height and width in tokens, if given.

        Raises ImageError for anything that is not such an image, and for one that exceeds a limit.
        """
        if len(data) > self.limits.bytes:
            raise ImageError(
                f"{name} cannot be read: it has {len(data)} bytes, more than the limit of {self.limits.bytes}; "
                "make it smaller"
            )
        least, most = self.limits.areas(self.tower)
        given = None if size is None else [side * TOKEN for side in size]
        request = {"bytes": len(data), "pixels": self.limits.pixels, "least": least, "most": most, "size": given}
        asked, seconds = json.dumps(request).encode() + b"\n" + data, self.limits.seconds
        response, content = self._quick.ask(asked, min(seconds, _QUICK_SECONDS))
        if response.get("late") and seconds > _QUICK_SECONDS:  # it holds up its like, and no others
            response, content = self._slow.ask(asked, seconds)
        if "error" in response:
            raise ImageError(f"{name} cannot be read: {response['error']}")
        shape = (response["height"], response["width"], 3)
        height, width = response["source"]
        return ResizedImage(np.frombuffer(content, np.uint8).reshape(shape), (height, width))


class _Process:
    """Decodes one image at a time, from whatever thread, in a process that starts when there is something to do."""

    def __init__(self) -> None:
        self.process: LimitedProcess | None = None
        self.lock = threading.Lock()

    def ask(self, request: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """What the process responds within so many seconds; see LimitedProcess."""
        with self.lock:
            if self.process is None or self.process.ended:
                self.process = _started()
            return self.process.ask(request, seconds)


def _started() -> LimitedProcess:
    try:
        process = LimitedProcess(_PROGRAM, _MAX_MEMORY)
    except OSError as error:
        raise ImageError(f"images cannot be read: {sys.executable} does not start ({error.strerror})") from error
    response, _ = process.ask(b"", _MAX_STARTING_SECONDS)
    if "ready" not in response:
        process.end()
        if response.get("missing"):
            raise ImageError("images need Pillow: pip install pillow")
        raise ImageError(f"images cannot be read: {sys.executable} does not run ({response.get('error')})")
    return process
