"""Prompts that take from the prefix cache what it has, as requests do."""

from trigraph.runtime.cache.prefix_cache import PrefixCache
from trigraph.runtime.execution.steps import Steps


def compute(steps: Steps, cache: PrefixCache, prompt: list[int]) -> int:
    """Runs a prompt as a request does, and says how many of its tokens were found."""
    found = cache.find(prompt)
    sequence, row = found.sequence, found.row
    start = sequence.length
    for stop in (found.parted, len(prompt)):
        if stop is not None and sequence.length < stop:
            cache.make_room(*steps.state.room([sequence], [stop]))
            row = steps.prefill([sequence], [prompt[sequence.length : stop]])
            cache.insert(sequence, row)
    assert row is not None
    steps.release(sequence)
    return start
