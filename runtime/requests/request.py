"""A request as rounds see it: what the next one needs of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trigraph.runtime.requests.completion import Completion
from trigraph.runtime.requests.draft_length import DraftLength
from trigraph.runtime.requests.prompt_images import PromptImages
from trigraph.runtime.sampling.sampling import Sampler
from trigraph.runtime.state.sequence import Sequence


@dataclass(eq=False)
class Request:
    """The data of one request. The thread that runs rounds is the only one to change it."""

    completion: Completion
    """What comes of it: the handle of whoever asked."""
    sampler: Sampler
    draft_length: DraftLength
    sequence: Sequence | None = None
    """What holds its state; None while it waits."""
    token: int = -1
    """The next one of the sequence: sampled, but not in the state yet."""
    decodes: bool = False
    """Whether its state holds `target`, so that it takes part in verifies."""
    error: Exception | None = None
    """What ends it early: its own sampler or constraint raised."""
    tokens: list[int] = field(default_factory=list)
    """The prompt as sequences and caches have it, with the keys of images in their places."""
    images: PromptImages = field(default_factory=PromptImages)
    """The images of the prompt."""
    checkpoints: set[int] = field(default_factory=set)
    """Lengths of the prompt that later prompts will begin with."""
    finish: Callable[[list[int]], None] | None = None
    """Called with the tokens of prompt and completion before the state is given back."""
    priority: int = 0
    deadline: float | None = None
    """When it ends as it is, by time.monotonic."""
    rank: tuple[int, int] = (0, 0)
    """Orders requests; the queue sets it."""
    found: int = -1
    """Tokens that the cache had when it was started last, or looked up while it waits; -1: not known yet."""
    kept: int = 0
    """Length of the last checkpoint of its state."""
    delay: int = 0
    """Tokens of later prompts that were computed before its own."""
    lost: int = 0
    """Tokens that were computed before it gave its state back."""
    awaited: tuple[Request, int] | None = None
    """Whose prompt begins as its own, and up to where: it waits for that."""
    suspect_until: int = -1
    """The length up to which it decodes alone, as a step with it and others failed."""

    @property
    def finished(self) -> bool:
        """Whether no round takes it any more."""
        return self.error is not None or self.completion.finished

    @property
    def state(self) -> Sequence:
        """The sequence of a request that has one."""
        if self.sequence is None:
            raise RuntimeError("a request without state takes no part in a round")
        return self.sequence

    @property
    def target(self) -> list[int]:
        """The tokens that its state must hold before the next one can be sampled or verified."""
        ids = self.completion.ids
        return [*self.tokens, *ids[:-1]] if ids else self.tokens

    @property
    def target_length(self) -> int:
        """Length of `target`."""
        return len(self.tokens) + max(0, len(self.completion.ids) - 1)

    @property
    def missing(self) -> int:
        """How many tokens of `target` its state lacks, or that of the cache while it waits."""
        return self.target_length - (self.found if self.sequence is None else self.sequence.length)
