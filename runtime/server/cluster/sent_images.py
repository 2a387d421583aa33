"""Images on the way from a front to replicas: the pixels once to each of them, afterwards a digest."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from trigraph.models.errors import TrigraphError
from trigraph.models.rope_positions import ImageSpan
from trigraph.runtime.images.image import ResizedImage, prefix_keys
from trigraph.runtime.images.prompt import ImagePrompt

_KEPT_BYTES = 64 << 20  # of pixels at a replica
_MOST_SENT = 1 << 12  # digests that a front remembers


class UnknownImagesError(TrigraphError):
    """A replica has not seen images of a ticket, or no longer has them: it needs their pixels."""


@dataclass(frozen=True)
class SentImages:
    """The images of a prompt."""

    spans: tuple[ImageSpan, ...]
    digests: tuple[bytes, ...]
    """A hash of the size and pixels of each."""
    pixels: Mapping[bytes, ResizedImage]
    """By digest; of those that the replica knows, none."""

    def keys(self, prompt: Sequence[int]) -> list[int]:
        """The prompt's ids, with numbers in the places of images that tell one from another."""
        keyed = [*prompt]
        for span, digest in zip(self.spans, self.digests, strict=True):
            keyed[span.start : span.end] = prefix_keys(digest, span.tokens).tolist()
        return keyed


class Outbox:
    """What a front has sent. A replica that was not the one to get it asks for it."""

    def __init__(self) -> None:
        self._sent: OrderedDict[bytes, None] = OrderedDict()

    def packed(self, prompt: ImagePrompt | None, *, whole: bool = False) -> SentImages | None:
        """The images of a prompt, if it has any: with their pixels where these were never sent, or `whole`."""
        if prompt is None or not prompt.images:
            return None
        digests = tuple(image.digest("") for image in prompt.pixels)
        pixels = dict(zip(digests, prompt.pixels, strict=True))
        new = {digest: image for digest, image in pixels.items() if whole or digest not in self._sent}
        return SentImages(prompt.images, digests, new)

    def arrived(self, images: SentImages | None) -> None:
        """Takes note that a replica has them."""
        for digest in () if images is None else images.digests:
            self._sent[digest] = None
            self._sent.move_to_end(digest)
        while len(self._sent) > _MOST_SENT:
            self._sent.popitem(last=False)


class Inbox:
    """The pixels that a replica has got. Any number of threads may use it."""

    def __init__(self, budget: int = _KEPT_BYTES) -> None:
        """`budget` in bytes: the least recently used ones go."""
        self._budget, self._held = budget, 0
        self._kept: OrderedDict[bytes, ResizedImage] = OrderedDict()
        self._lock = threading.Lock()

    def prompt(self, ids: Collection[int], images: SentImages) -> ImagePrompt:
        """The prompt of a ticket. Raises UnknownImagesError where pixels are neither in it nor here."""
        with self._lock:
            for digest, image in images.pixels.items():
                if digest not in self._kept:
                    self._kept[digest] = image
                    self._held += image.pixels.nbytes
            missing = [digest for digest in images.digests if digest not in self._kept]
            if missing:
                raise UnknownImagesError(f"the pixels of {len(missing)} images are not here; send them")
            for digest in images.digests:
                self._kept.move_to_end(digest)
            pixels = tuple(self._kept[digest] for digest in images.digests)
            while self._held > self._budget:
                self._held -= self._kept.popitem(last=False)[1].pixels.nbytes
        return ImagePrompt(tuple(ids), images.spans, pixels)
