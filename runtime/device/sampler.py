"""Sampling where logits are: on a device, from the rows of steps that nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trigraph.runtime.device.exchange import Exchange


class SamplingParameters(NamedTuple):
    """How tokens are drawn from rows of logits; with temperature 0 the most likely one is taken."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int = 0


class Sample(NamedTuple):
    """A token to be drawn."""

    parameters: SamplingParameters
    position: int
    only_drawn: bool
    """Where no logit is finite the token is -1, else the step's most likely one."""


class DeviceSampler(Protocol):
    """Draws the tokens of a round on a device."""

    def supports(self, parameters: SamplingParameters) -> bool:
        """Whether it can draw like that."""

    def begin(self, samples: Sequence[Sample]) -> None:
        """Takes all samples of a round, in order of its steps and of their rows; a sample's number is its place.

        The device may get them behind the round's first step.
        """

    def sample(self, exchange: Exchange, rows: int) -> None:
        """Enqueues the next `rows` samples, from the first rows of the step that was enqueued last."""

    def walk(self, exchange: Exchange, walks: Sequence[tuple[int, int]]) -> None:
        """Enqueues the next samples, from the candidates of a block drafter, whose run was enqueued last.

        `walks`: the first draft's row and the number of drafts of each sequence, whose samples lie together.
        """

    def place(self, number: int) -> int:
        """The address of a sample's token, for `Exchange.send`."""

    def read(self) -> NDArray[np.int64]:
        """Tokens by number; they are there once the device was waited for."""

    def seconds(self) -> list[float]:
        """What each step and its samples took, once the device was waited for."""
