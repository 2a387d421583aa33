"""What an audit asks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from trigraph.models.errors import TrigraphError


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen."""

    temperature: float = 0.0
    top_p: float = 0.95
    seed: int | None = None

    @property
    def name(self) -> str:
        """The name of this way of choosing in tables."""
        return "seeded" if self.temperature else "greedy"


GREEDY = Sampling()
SEEDED = Sampling(temperature=0.8, seed=20)


@dataclass(frozen=True)
class Case:
    """A prompt, and how to continue it."""

    prompt: str
    sampling: Sampling


@dataclass(frozen=True)
class Prompt:
    """A text to continue."""

    kind: str
    text: str


@cache
def shipped_prompts() -> tuple[Prompt, ...]:
    """Forty prompts of several kinds."""
    text = files("trigraph.runtime.audit").joinpath("prompts.json").read_text()
    return tuple(Prompt(**each) for each in json.loads(text))


@dataclass(frozen=True)
class Plan:
    """The prompts, and how far an audit goes."""

    prompts: Sequence[Prompt] = field(default_factory=shipped_prompts)
    tokens: int = 64
    """Most tokens of an answer."""
    companions: tuple[int, ...] = (2, 8, 32)
    """Numbers of other requests that are computed at the same time."""
    others: int = 100
    """Other prompts that are asked in between, to evict what a cache holds."""
    idle: float = 60.0
    """Seconds without any request."""
    steps: int = 16
    """Tokens that are asked for one at a time."""
    long_prompt: int = 12_000
    """Characters of the long prompts beside a request."""
    timeout: float = 300.0
    """Longest time of one answer, in seconds."""
    seconds: float = 8 * 3600.0
    """The time to end within, but for the last answer; what does not fit is left out."""
    bytes: int = 1 << 30
    """Most bytes of all answers."""

    def __post_init__(self) -> None:
        if not self.prompts:
            raise TrigraphError("there are no prompts to ask; give at least one")
        if self.tokens < 1:
            raise TrigraphError(f"tokens is {self.tokens}; it must be 1 or more")
        if not 1 <= self.timeout <= 86400:
            raise TrigraphError(f"timeout is {self.timeout:g}; it must be from 1 to 86400 seconds")
        if not all(0 < count <= 256 for count in self.companions):
            raise TrigraphError(f"companions are {self.companions}; each must be from 1 to 256")

    def quick(self) -> Plan:
        """A plan that ends within two minutes, or three where single answers are slow. It idles long enough to see a
        server that forgets after half a minute.
        """
        companions = tuple(count for count in self.companions if count <= 8)
        return replace(
            self, tokens=min(self.tokens, 24), companions=companions, others=20, idle=35.0, steps=6, long_prompt=4000,
            timeout=min(self.timeout, 60.0), seconds=120.0,
        )  # fmt: skip

    @property
    def cases(self) -> list[Case]:
        """All of them: each prompt greedily and with a seed."""
        return [Case(prompt.text, sampling) for prompt in self.prompts for sampling in (GREEDY, SEEDED)]


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a file: a JSON list of strings, or a prompt on each line. Raises TrigraphError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrigraphError(f"{path}: cannot be read ({error})") from error
    if path.suffix == ".json":
        try:
            found = json.loads(text)
        except ValueError as error:
            raise TrigraphError(f"{path}: not valid JSON ({error})") from error
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise TrigraphError(f"{path}: must be a JSON list of strings")
    else:
        found = text.splitlines()
    prompts = tuple(Prompt("given", each) for each in found if each.strip())
    if not prompts:
        raise TrigraphError(f"{path}: has no prompts; write one on each line")
    return prompts
