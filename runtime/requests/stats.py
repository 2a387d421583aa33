"""What a request cost, and what speculation did for it."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple


class Round(NamedTuple):
    """What one verify brought a request."""

    tokens: list[int]
    """The tokens that it added to the completion."""
    drafted: int
    accepted: int
    """Drafts that the sampler agreed with."""
    draft_seconds: float
    seconds: float
    """The seconds of the whole round, drafting included, whoever shared it."""
    sequences: int = 1
    """Requests that shared it."""
    ended: float = 0.0
    """When its tokens were there, by time.perf_counter."""


@dataclass(frozen=True)
class Stats:
    """Counts and times of one request; seconds are wall-clock."""

    prompt_tokens: int  # computed for this request
    reused_tokens: int  # of the prompt, found in the state of an earlier turn
    waiting_seconds: float  # until its prompt was begun
    prompt_seconds: float  # from then on to the first token, which other requests' steps may have put off
    tokens: int  # sampled, a final stop token included
    seconds: float  # from the first token, which the prompt's last step brings, to the last one
    rounds: int
    drafted: int
    accepted: int
    preemptions: int  # how often its state was taken, and computed again
    speculation: str  # "on", or why it was not
    finish_reason: str  # "stop", "length", "context", "cancelled" or "timeout"
    seed: int
    peak_memory: int | None  # bytes of the process, mapped weights included; None where the system does not tell

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens a second."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def rate(self) -> float:
        """Generated tokens a second."""
        return (self.tokens - 1) / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Mean tokens that a round added."""
        return (self.tokens - 1) / self.rounds if self.rounds else 0.0

    def line(self) -> str:
        """One line for people."""
        parts = [
            f"prompt {self.prompt_tokens} tokens" + (f" (+{self.reused_tokens} reused)" if self.reused_tokens else ""),
            f"{self.prompt_rate:.1f} tokens/s",
            f"generated {self.tokens} tokens",
            f"{self.rate:.1f} tokens/s",
        ]
        text = f"{parts[0]}, {parts[1]} | {parts[2]}, {parts[3]} | "
        if self.drafted:
            text += f"accepted {self.accepted}/{self.drafted} drafts, {self.tokens_per_round:.2f} tokens a round | "
        text += f"speculation {self.speculation} | "
        if self.peak_memory is not None:
            text += f"peak memory {self.peak_memory / 1e6:,.0f} MB | "
        return text + f"end: {self.finish_reason}"

    def as_json(self) -> dict[str, Any]:
        """All fields and rates, for scripts."""
        rates = {name: getattr(self, name) for name in ("prompt_rate", "rate", "tokens_per_round")}
        return asdict(self) | rates


def peak_memory() -> int | None:
    """Largest resident size of this process so far, in bytes; None where the system does not tell."""
    try:
        # What getrusage tells a child begins with what its parent had.
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
