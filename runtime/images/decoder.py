"""Files of images, decoded and resized in a process under limits: they come from strangers."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import numpy as np

from trigraph.models.errors import TrigraphError
from trigraph.models.vision.config import TOKEN, VisionConfig
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.limits import ImageLimits
from trigraph.runtime.limited.process import LimitedProcess

_PROGRAM = Path(__file__).with_name("decoder_process.py")
_MAX_MEMORY = 3 << 29  # bytes of the process: 64 megapixels of WebP with transparency take almost all of it
_MAX_STARTING_SECONDS = 60.0


class ImageError(TrigraphError):
    """An image that cannot be read, or that exceeds a limit."""


class ImageDecoder:
    """Reads JPEG, PNG, WebP and GIF files (of an animation the first frame) for one tower."""

    def __init__(self, tower: VisionConfig, limits: ImageLimits | None = None) -> None:
        self.tower, self.limits = tower, limits or ImageLimits()
        self._process: LimitedProcess | None = None
        self._lock = threading.Lock()  # one image at a time, from whatever thread

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
        with self._lock:
            response, content = self._started().ask(json.dumps(request).encode() + b"\n" + data, self.limits.seconds)
        if "error" in response:
            raise ImageError(f"{name} cannot be read: {response['error']}")
        shape = (response["height"], response["width"], 3)
        height, width = response["source"]
        return ResizedImage(np.frombuffer(content, np.uint8).reshape(shape), (height, width))

    def _started(self) -> LimitedProcess:
        if self._process is not None and not self._process.ended:
            return self._process
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
        self._process = process
        return process
