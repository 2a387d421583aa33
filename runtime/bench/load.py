"""A load of requests, and what its clients saw of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from trigraph.runtime.bench.random_tokens import RandomTokens
from trigraph.runtime.bench.request_options import RequestOptions


@dataclass(frozen=True)
class Load:
    """Requests for greedy completions, a number of them in flight at any time."""

    prompts: list[list[int]]
    tokens: int
    """The tokens of each completion, whatever they are."""
    concurrency: int

    @classmethod
    def draw(
        cls, random: RandomTokens, requests: int, prompt: int, tokens: int, concurrency: int, shared: int = 0
    ) -> Load:
        """Prompts of random tokens that differ from each other, except in their first `shared` ones."""
        prefix = random.draw(shared)
        return cls([prefix + random.draw(prompt - shared) for _ in range(requests)], tokens, concurrency)


@dataclass(frozen=True)
class Served:
    """What one client saw. Times are in seconds, from any moment that a load's clients agree on."""

    submitted: float
    arrivals: list[float]
    """When tokens came, one or more at a time."""
    tokens: int
    reused: int = 0
    """Tokens of the prompt that were not computed again."""
    drafted: int = 0
    accepted: int = 0
    rounds: float = 0
    """Its share of the rounds that it was in: of one with 4 requests, a quarter. 0 where the engine does not tell."""

    @property
    def first_token(self) -> float:
        """Seconds from its submission to its first token."""
        return self.arrivals[0] - self.submitted

    @property
    def gaps(self) -> list[float]:
        """Seconds between arrivals."""
        return [after - before for before, after in pairwise(self.arrivals)]


@dataclass(frozen=True)
class ServedLoad:
    """A load that one engine has served."""

    served: list[Served]
    peak_memory: int | None
    """Bytes of the engine's process so far; None where the system does not tell."""
    read_gb_s: float = 0
    """Read bandwidth of the machine just before."""

    @property
    def tokens_per_s(self) -> float:
        """Completion tokens over the time from the first submission to the last token."""
        start = min(served.submitted for served in self.served)
        end = max(served.arrivals[-1] for served in self.served)
        return sum(served.tokens for served in self.served) / (end - start)


class Server(Protocol):
    """An engine that serves requests."""

    name: str
    settings: str
    """What it was told, for the reader of its figures."""

    def serve(self, load: Load) -> ServedLoad:
        """Serves the load, and returns when all is there. Raises TrigraphError when it cannot."""

    def close(self) -> None:
        """Ends it and gives its memory back."""


OpenServer = Callable[[Path, RequestOptions, int], Server]
"""Opens a model file for the loads of these options, given the context length of a request."""
