"""Context extension by YaRN: rotary pairs that turn slowly are slowed further, those that turn fast keep their speed.

Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models" (arXiv 2309.00071).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trigraph.models.errors import TrigraphError, quote

MOST_FACTOR = 1024.0


@dataclass(frozen=True)
class RopeScaling:
    """YaRN's parameters, by the names of GGUF's keys."""

    factor: float
    """How many times longer than `original_context` a text may be."""
    original_context: int
    """Positions that the model was trained with."""
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    """Pairs that turn at least so often in the original context keep their speed."""
    beta_slow: float = 1.0
    """Pairs that turn at most so often are `factor` times slower."""

    def ramp(self, dims: int, theta: float) -> tuple[int, int]:
        """The pairs of rotary dimensions `dims` between which speeds go from the model's own to the slower ones.

        Raises TrigraphError for a theta that does not slow any pair.
        """
        if theta <= 1:
            raise TrigraphError(f"rope.freq_base is {theta}, and YaRN needs more than 1; use rope_scaling=none")

        def pair(turns: float) -> float:
            return dims * math.log(self.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

        return max(math.floor(pair(self.beta_fast)), 0), min(math.ceil(pair(self.beta_slow)), dims - 1)

    def __str__(self) -> str:
        return (
            f"yarn:{self.factor} of {self.original_context} positions, attention factor {self.attn_factor}, "
            f"beta {self.beta_fast} to {self.beta_slow}"
        )

    @property
    def magnitude(self) -> float:
        """What rotated dimensions are multiplied with: scores of a longer context need a lower temperature."""
        return (0.1 * math.log(self.factor) + 1) * self.attn_factor


def parse_rope_scaling(text: str, original_context: int) -> RopeScaling | None:
    """What `yarn:FACTOR` or `none` asks for. Raises TrigraphError for anything else."""
    if text == "none":
        return None
    kind, _, number = text.partition(":")
    try:
        factor = float(number)
    except ValueError:
        factor = math.nan
    if kind != "yarn" or not 1 < factor <= MOST_FACTOR:
        raise TrigraphError(
            f"rope_scaling is {quote(text)}, expected none or yarn:FACTOR with a factor above 1 and up to "
            f"{MOST_FACTOR:.0f}, such as yarn:4"
        )
    return RopeScaling(factor, original_context)
