"""A step of which samplers read rows."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass
class FakeStep:
    """A step of rows, or one whose logits must not be read."""

    tokens: np.ndarray
    rows: np.ndarray | None = None

    @property
    def logits(self) -> np.ndarray:
        assert self.rows is not None, "a greedy request read logits"
        return self.rows

    @property
    def hidden(self) -> np.ndarray:
        raise AssertionError("nobody has asked for hidden rows")
