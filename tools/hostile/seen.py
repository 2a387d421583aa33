"""What a soak has seen: answers, faults, gaps, memory."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field


@dataclass
class Seen:
    """What came of the requests."""

    statuses: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    faults: list[str] = field(default_factory=list)
    compared: int = 0
    gaps: list[float] = field(default_factory=list)
    """The longest one of each ordinary stream, in seconds."""
    beside: list[tuple[float, Counter[str]]] = field(default_factory=list)
    """Of gaps above half a second: how long, and the kinds of the requests that were being answered at their end."""
    now: Counter[str] = field(default_factory=Counter)
    """The kinds of the requests that are being answered."""
    firsts: list[float] = field(default_factory=list)
    """Until a stream's first token."""
    memory: list[int] = field(default_factory=list)
    """Bytes of all of the server's processes."""
    helpers: set[int] = field(default_factory=set)
    """All processes that were seen."""
    done: int = 0

    def fault(self, text: str) -> None:
        """Takes note of what must not be; the first hundred are kept."""
        if len(self.faults) < 100:
            self.faults.append(text)
            print(f"FAULT: {text}", flush=True)

    def growth(self) -> float:
        """By which part memory has grown, from the second quarter of the time to the last."""
        early, late = self._medians()
        return late / early - 1

    def tell(self, processes: int) -> None:
        """Prints sums; `processes`: how many there are at the end."""
        for kind, counts in sorted(self.statuses.items()):
            each = ", ".join(f"{count} x {status}" for status, count in sorted(counts.items()))
            print(f"{kind:13} {sum(counts.values()):6}  {each}")
        early, late = self._medians()
        print(
            f"{len(self.faults)} faults; {self.compared} ordinary completions compared\n"
            f"memory: {early / 1e6:.0f} MB in the second quarter, {late / 1e6:.0f} MB in the last "
            f"({self.growth():+.1%}), {max(self.memory, default=0) / 1e6:.0f} MB at most; "
            f"{len(self.helpers)} processes seen, {processes} at the end\n"
            f"ordinary streams beside: {len(self.gaps)}, longest gap {max(self.gaps, default=0):.2f} s, "
            f"first token after {max(self.firsts, default=0):.2f} s at most"
        )
        for seconds, kinds in sorted(self.beside, key=lambda each: -each[0])[:9]:
            print(f"    {seconds:.2f} s beside " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))

    def _medians(self) -> tuple[float, float]:
        quarter = max(1, len(self.memory) // 4)
        parts = self.memory[quarter : 2 * quarter], self.memory[-quarter:]
        early, late = (statistics.median(part or [1]) for part in parts)
        return early, late
