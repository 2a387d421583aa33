"""Prompts that take from the prefix cache what it has, as requests do."""

from trigraph.runtime.cache.prefix_cache import PrefixCache
from trigraph.runtime.execution.steps import Steps


def compute(
    steps: Steps, cache: PrefixCache, prompt: list[int], reply: list[int] | None = None, system: int = 0
) -> int:
    """Runs a prompt as a request does, and says how many of its tokens were found.

    `reply`: tokens of a completion behind it. `system`: tokens of a system message, which get a checkpoint.
    """
    found = cache.find(prompt)
    sequence, row = found.sequence, found.row
    start = sequence.length
    for stop in sorted({system, found.parted or 0, len(prompt)}):
        if sequence.length < stop:
            cache.make_room(*steps.state.room([sequence], [stop]))
            row = steps.prefill([sequence], [prompt[sequence.length : stop]])
            cache.insert(sequence, row)
    if reply:
        cache.make_room(*steps.state.room([sequence], [len(prompt) + len(reply)]))
        row = steps.prefill([sequence], [reply])
        cache.insert(sequence, None)
    assert row is not None
    steps.release(sequence)
    return start
