"""What can be fuzzed, and within which limits."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Target(Protocol):
    """Something that is given damaged input."""

    def run(self, seed: int, case: int) -> str:
        """Handle one case; returns a word for what became of it. TrigraphError is a refusal, anything else a defect."""


@dataclass(frozen=True)
class Limits:
    """What one case may take."""

    cpu_seconds: float
    bytes: int
    """Of address space beyond what the process has before the first case."""
    error_length: int = 1000


# Module of the fuzz package with a class `Fuzzer(folder)`, and its limits.
TARGETS = {
    "headers": Limits(cpu_seconds=1, bytes=256 << 20),
    "towers": Limits(cpu_seconds=1, bytes=256 << 20),
    "drafters": Limits(cpu_seconds=2, bytes=256 << 20),
    "images": Limits(cpu_seconds=1, bytes=2 << 30),  # that process' own limit is lower
    "packages": Limits(cpu_seconds=2, bytes=512 << 20),
    "sessions": Limits(cpu_seconds=2, bytes=512 << 20),
    "operators": Limits(cpu_seconds=5, bytes=1 << 30),
    "answers": Limits(cpu_seconds=10, bytes=1 << 30),  # a whole audit, now and then
    "constraints": Limits(cpu_seconds=5, bytes=1 << 30),
    "replies": Limits(cpu_seconds=1, bytes=256 << 20),
    "grammars": Limits(cpu_seconds=12, bytes=1 << 30),
    "texts": Limits(cpu_seconds=2, bytes=1 << 30),
}


def make_target(name: str, folder: Path) -> Target:
    """The target called `name`, with a folder to write to."""
    target: Target = importlib.import_module(f"fuzz.{name}").Fuzzer(folder)
    return target
