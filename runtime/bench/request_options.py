"""What loads of requests to serve."""

from __future__ import annotations

from dataclasses import dataclass

from trigraph.exporter.package.manifest import Manifest
from trigraph.models.errors import TrigraphError
from trigraph.runtime.bench.options import RunOptions


@dataclass(frozen=True)
class RequestOptions(RunOptions):
    """What loads to serve, and how often."""

    requests: int
    """The requests of each load."""
    concurrency: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of requests in flight, a load each."""
    prompt: int = 128
    """Tokens of a prompt."""
    tokens: int = 64
    """Tokens of a completion."""
    shared_prefix: int = 0
    """Tokens with which all prompts of a load begin."""
    repetitions: int = 3
    """Loads for each concurrency and engine."""
    draft_tokens: tuple[int, ...] = ()
    """The draft length, one at most; none leaves it to the governor."""

    def __post_init__(self) -> None:
        self.check_least(requests=1, concurrency=1, prompt=1, tokens=2, shared_prefix=0, threads=1, repetitions=1)
        self.check_least(draft_tokens=0)
        if not self.concurrency:
            raise TrigraphError("concurrency is empty; give numbers of requests in flight, such as 1,2,4,8")
        if self.shared_prefix >= self.prompt:
            raise TrigraphError(f"shared-prefix is {self.shared_prefix}; it must be less than prompt, {self.prompt}")
        if len(self.draft_tokens) > 1:
            raise TrigraphError("draft-tokens: give one number")

    def context(self, manifest: Manifest) -> int:
        """Tokens that a request may reach. Raises TrigraphError when that is more than the package holds."""
        context = self.prompt + self.tokens + manifest.reach
        if context > manifest.max_context:
            raise TrigraphError(f"the run needs a context of {context}; the package holds {manifest.max_context}")
        most = manifest.max_pending - 1
        for drafts in self.draft_tokens:
            if drafts > most:
                raise TrigraphError(f"draft-tokens is {drafts}; a round drafts at most {most}")
        return context
