"""Images in whatever form a program has them; those that were read lately are not read again."""

from __future__ import annotations

import hashlib
import io
import os
import re
import threading
from collections import OrderedDict
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from trigraph.models.errors import TrigraphError, quote
from trigraph.models.vision.config import VisionConfig
from trigraph.runtime.images.decoder import ImageDecoder, ImageError
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.limits import ImageLimits

if TYPE_CHECKING:
    from PIL.Image import Image

ImageLike: TypeAlias = "str | PathLike[str] | bytes | Image | npt.NDArray[np.uint8] | ResizedImage"
"""A file by its path, the bytes of one, an image of Pillow, or pixels [height, width], [height, width, 3 or 4]."""

NO_TOWER = "the model reads text only; it reads images with its mmproj-*.gguf, beside the .gguf file or given as mmproj"
"""What users of a model without a vision tower are told."""

_Size: TypeAlias = tuple[int, int] | None
"""Height and width in tokens; None: what follows from the image's own."""

_CACHE_BYTES = 64 << 20
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "I;16")
"""The modes of Pillow that PNG files keep as they are."""


class ImageReader:
    """Reads images for one tower, under limits. Any number of threads may use it."""

    def __init__(
        self, tower: VisionConfig, limits: ImageLimits | None = None, *, cache_bytes: int = _CACHE_BYTES
    ) -> None:
        """`cache_bytes`: of the pixels that are kept, those that were used last."""
        self.tower = tower
        self._decoder = ImageDecoder(tower, limits)
        self._cache: OrderedDict[tuple[bytes, _Size], ResizedImage] = OrderedDict()
        self._cache_bytes, self._held = cache_bytes, 0
        self._lock = threading.Lock()

    @property
    def limits(self) -> ImageLimits:
        """What one image may take."""
        return self._decoder.limits

    def read(self, given: ImageLike, name: str = "the image", size: _Size = None) -> ResizedImage:
        """The image that a model sees; `name` is what errors call it, unless it has a file. `size`: to resize it to.

        Raises ImageError for what cannot be read or exceeds a limit, TrigraphError for what is not an image.
        """
        if isinstance(given, ResizedImage):
            return given
        if isinstance(given, str | PathLike):
            name, given = str(given), self._file(given)
        data = bytes(given) if isinstance(given, bytes | bytearray) else _as_file(given, name)
        return self._decoded(data, name, size)

    def _decoded(self, data: bytes, name: str, size: _Size) -> ResizedImage:
        key = hashlib.sha256(data).digest(), size
        with self._lock:
            if (known := self._cache.get(key)) is not None:
                self._cache.move_to_end(key)
                return known
        decoded = self._decoder.decode(data, name, size)
        with self._lock:
            if key not in self._cache:
                self._cache[key] = decoded
                self._held += decoded.pixels.nbytes
            while self._held > self._cache_bytes:
                self._held -= self._cache.popitem(last=False)[1].pixels.nbytes
        return decoded

    def _file(self, path: str | PathLike[str]) -> bytes:
        """No more of a file than shows that it is too large."""
        try:
            with Path(path).open("rb") as file:
                return file.read(self.limits.bytes + 1)
        except (OSError, ValueError) as error:
            remedy = "give the name of a file"
            if re.match("[a-z]{3,}:/", str(path)):
                remedy = "download it first: nothing is fetched"
            reason = getattr(error, "strerror", None) or error
            raise ImageError(f"{quote(os.fspath(path))} cannot be read: {reason}; {remedy}") from error


def _as_file(given: Any, name: str) -> bytes:
    """A PNG file with the pixels of an image or an array."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImageError("images need Pillow: pip install pillow") from error
    from trigraph.runtime.images.decoder_process import upright

    if isinstance(given, np.ndarray):
        given = Image.fromarray(np.ascontiguousarray(_checked(given, name)))
    if not isinstance(given, Image.Image):
        raise TrigraphError(
            f"{name} is {quote(given)}; give a path, the bytes of a file, an image of Pillow, or a NumPy array"
        )
    image = upright(given)
    out = io.BytesIO()
    (image if image.mode in _MODES else image.convert("RGB")).save(out, "PNG", compress_level=1)
    return out.getvalue()


def _checked(pixels: npt.NDArray[Any], name: str) -> npt.NDArray[np.uint8]:
    """Raises TrigraphError for an array that is not pixels."""
    shape = pixels.shape
    if pixels.dtype != np.uint8 or not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4))) or 0 in shape:
        raise TrigraphError(
            f"{name} is an array of {pixels.dtype} {list(shape)}; it must be uint8 with the shape [height, width], "
            "[height, width, 3] or [height, width, 4]"
        )
    return pixels
