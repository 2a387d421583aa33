"""What was measured of one case."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """Times of one kind of step, or of whole completions, in one engine. Its fields are the keys of `bench --json`."""

    engine: str
    name: str
    """"prefill", "decode", "verify", "draft", "block" or "generate"."""
    k: int
    """Tokens of each sequence: in the step, or of the whole prefill or completion."""
    sequences: int
    context: int
    """Positions before the step, of each sequence."""
    threads: int
    min_ms: float
    lower_ms: float
    """The lower quartile."""
    median_ms: float
    upper_ms: float
    """The upper quartile."""
    max_ms: float
    tokens_per_s: float
    """The tokens a second of all sequences together, at the median."""
    bytes: float | None = None
    """What the step must read and write."""
    floor_ms: float | None = None
    """The roofline: the larger of bytes over bandwidth and products over multiply rate; of a prefill on CPUs only."""
    roofline: float | None = None
    """Fraction of the roofline that was reached: floor over time. Floor and fraction are medians over the samples."""
    note: str = ""
