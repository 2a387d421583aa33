"""Whether a device with an arithmetic of its own comes near the CPU's logits, and gives a text the same in any way.

`python -m trigraph.runtime.doctor.near DEVICE DIR...` prints both as JSON: see Nearness.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trigraph.runtime.doctor.bits import tokens_of
from trigraph.runtime.engine.loading import load
from trigraph.runtime.execution.steps import Steps

TOLERANCE = 0.005
"""In parts of the largest logit: keys, values and queries have 16 bits, which moves logits by some ten thousandths."""

_PROMPT, _TEXT = 61, 77  # tokens of a prompt, and with those after it


@dataclass(frozen=True)
class Nearness:
    """What was found."""

    distance: float = 0.0
    """The largest one of a logit from the CPU's, in parts of the largest logit."""
    changed_by: tuple[str, ...] = ()
    """What changes bits on the device and should not."""


@dataclass(frozen=True)
class _Way:
    """A way to compute a text: in prefills and verifies of these tokens, with rejected drafts or with companions."""

    prefills: Sequence[int] = (_PROMPT,)
    verifies: Sequence[int] = (1,) * (_TEXT - _PROMPT)
    rejected: int = 0
    companions: int = 0

    def logits(self, steps: Steps) -> NDArray[np.float32]:
        """The logits of the last token of the prompt and of all after it: [rows, vocabulary]."""
        text = tokens_of(steps, _TEXT, 0)
        own, *others = both = [steps.new_sequence() for _ in range(1 + self.companions)]
        rows, done = [np.empty((0, steps.vocab), np.float32)], 0
        for count in self.prefills:
            prompts = [text[done : done + count], *(text[i + 3 : 2 * i + 9] for i in range(len(others)))]
            result, done = steps.prefill(both, prompts), done + count
        rows.append(result.logits[:1].copy())
        for count in self.verifies:
            if self.rejected:
                steps.verify([own], [text[: self.rejected]])
                steps.keep(own, 0)
            new = [text[done : done + count], *(text[i : i + 1 + (i + count) % 5] for i in range(len(others)))]
            rows.append(steps.verify(both, new).logits[:count].copy())
            for sequence in both:
                steps.keep(sequence, count if sequence is own else 1)
            done += count
        for sequence in both:
            steps.release(sequence)
        return np.concatenate(rows)


_PLAIN = _Way()
_WAYS: Mapping[str, _Way] = {
    "drafts": _Way(verifies=(2, 3, 8, 1, 2)),
    "rejected drafts": _Way(rejected=5),
    "cuts of a prompt": _Way(prefills=(1, 20, 40)),
    "companions": _Way(companions=3),
}


def nearness(folder: Path, device: str) -> Nearness:
    """How near a package's logits on a device come to the CPU's. Raises TrigraphError when it does not load there."""
    exact, found = (load(folder, context=256, sequences=4, device=name).steps for name in ("cpu", device))
    known, plain = _PLAIN.logits(exact), _PLAIN.logits(found)
    distance = np.abs(plain - known).max() / np.abs(known).max()
    return Nearness(float(distance), tuple(_changes(found, plain)))


def _changes(steps: Steps, plain: NDArray[np.float32]) -> Iterator[str]:
    for name, way in _WAYS.items():
        if way.logits(steps).tobytes() != plain.tobytes():
            yield name


if __name__ == "__main__":
    device, *folders = sys.argv[1:]
    print(json.dumps([dataclasses.asdict(nearness(Path(folder), device)) for folder in folders]))
