"""Damaged files of images: each is an image or a TrigraphError within a second of the processor's time, and the process
that decodes goes on or is made anew.

Damage knows the formats: sizes in headers lie, and checksums of PNG chunks are made to fit, so that decoders see it.
"""

from __future__ import annotations

import os
import random
import struct
import zlib
from pathlib import Path

import numpy as np

from fuzz.damage import damage_bytes
from support.pictures.pictures import every_kind
from trigraph.models.vision.config import VisionConfig
from trigraph.runtime.images.decoder import ImageDecoder
from trigraph.runtime.images.limits import ImageLimits

_TOWER = VisionConfig("tower", 1, 96, 4, 128, 256, 8, 1e-6, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_MOST_BYTES = 3 << 29
_MOST_SECONDS = 1.0
_CHECKED = 50  # one of so many cases is followed by an image that must come out as ever


class Fuzzer:
    """See fuzz.target.Target."""

    def __init__(self, folder: Path) -> None:
        self._files = [*every_kind(24, 37).values()]
        self._decoder = ImageDecoder(_TOWER, ImageLimits(pixels=1 << 22))
        self._good = self._decoder.decode(self._files[0]).pixels
        self._spent: dict[int, float] = {}  # processor seconds, by process

    def run(self, seed: int, case: int) -> str:
        """Decode a damaged file."""
        rng = random.Random(f"{seed}:{case}")
        try:
            image = self._decoder.decode(damage(rng, rng.choice(self._files)))
            assert image.tokens <= 1024 and image.patches(_TOWER).shape == (4 * image.tokens, 768)
        finally:
            self._check(case)
        return "decoded"

    def _check(self, case: int) -> None:
        process = self._decoder._quick.process
        if process is not None and not process.ended:
            status = Path(f"/proc/{process.process.pid}/status")
            if status.exists():
                peak = next(line for line in status.read_text().splitlines() if line.startswith("VmPeak"))
                assert int(peak.split()[1]) << 10 <= _MOST_BYTES, peak
                self._check_time(process.process.pid)
        if case % _CHECKED == 0:
            np.testing.assert_array_equal(self._decoder.decode(self._files[0]).pixels, self._good)

    def _check_time(self, pid: int) -> None:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        spent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        seconds = spent - self._spent.get(pid, spent)
        self._spent = {pid: spent}
        assert seconds <= _MOST_SECONDS, f"a case takes {seconds:.2f} s"


def damage(rng: random.Random, data: bytes) -> bytes:
    """A file with damage to its sizes, its chunks, or any bytes."""
    if rng.random() < 0.2:
        side = struct.pack(rng.choice((">H", "<H", ">I", "<I")), rng.choice((0, 1, 255, 3000, 65535)))
        at = rng.randrange(min(len(data), 200))
        data = data[:at] + side + data[at + len(side) :]
    if rng.random() < 0.9:
        data = damage_bytes(rng, data)
    return _with_checksums(data) if data.startswith(b"\x89PNG") and rng.random() < 0.8 else data


def _with_checksums(data: bytes) -> bytes:
    """A PNG file whose chunks have the checksums of their content, as far as they can be found."""
    out, at = bytearray(data[:8]), 8
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if end + 4 > len(data):
            break
        out += data[at:end] + struct.pack(">I", zlib.crc32(data[at + 4 : end]))
        at = end + 4
    return bytes(out + data[at:])
