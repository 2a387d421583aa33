"""What to time."""

from __future__ import annotations

from dataclasses import dataclass

from trigraph.exporter.package.manifest import Manifest
from trigraph.models.errors import TrigraphError


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where a benchmark runs."""

    threads: int = 1
    device: str = "cpu"
    repack: str = "auto"
    """When our engine repacks its weights: one of REPACK. In the background, the run waits for that."""

    def check_least(self, **least: int) -> None:
        """Raises TrigraphError for a number, or one of several, that is less than that of its name."""
        for name, bound in least.items():
            found = getattr(self, name)
            for value in found if isinstance(found, tuple) else (found,):
                if value < bound:
                    raise TrigraphError(f"{name.replace('_', '-')} is {value}; it must be {bound} or more")


@dataclass(frozen=True, kw_only=True)
class BenchOptions(RunOptions):
    """What to time, and how often."""

    prompt: int = 512
    """Tokens of the prompt."""
    tokens: int = 128
    """Tokens of a completion; 0 times none."""
    verify_tokens: tuple[int, ...] = (1, 2, 4, 8)
    """Tokens of a verify."""
    repetitions: int = 10
    accept: float | None = None
    """Replaces the model's drafts by ones that are right with this probability."""
    contexts: tuple[int, ...] = ()
    """Context lengths of a decode step, for a sweep."""
    sequences: tuple[int, ...] = ()
    """Batch sizes of a decode step, for a sweep; each sequence has the prompt's length."""

    def __post_init__(self) -> None:
        self.check_least(prompt=1, tokens=0, threads=1, repetitions=1, contexts=1, sequences=1)
        if self.accept is not None and not 0 <= self.accept <= 1:
            raise TrigraphError(f"accept is {self.accept}; it must be from 0 to 1")

    def context(self, manifest: Manifest) -> int:
        """Context size that the whole run needs. Raises TrigraphError when a package cannot do the run."""
        if not all(1 <= k <= manifest.max_pending for k in self.verify_tokens):
            raise TrigraphError(f"k is {self.verify_tokens}; a verify takes 1 to {manifest.max_pending} tokens")
        rounds = self.repetitions + 1
        verified = rounds * (sum(k + 1 for k in self.verify_tokens) + manifest.reach)
        swept = 2 * rounds * max(1, len(self.sequences))
        context = max(
            self.prompt + verified,
            self.prompt + self.tokens + manifest.reach,
            *(length + swept for length in (self.prompt, *self.contexts)),
        )
        if context > manifest.max_context:
            raise TrigraphError(f"the run needs a context of {context}; the package holds {manifest.max_context}")
        return context
