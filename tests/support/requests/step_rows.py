"""Rows of steps that differ from each other in every way: shapes, companions, rejects, drafts."""

from __future__ import annotations

from typing import Any

from trigraph.runtime import Engine


def rows_of_steps(engine: Engine) -> list[bytes]:
    """Logits, hidden rows and tokens of a prefill, verifies with rejects and companions, and drafts."""
    prompts = [list(range(3, 24)), [7, 1], [9, 8, 7, 6, 5]]
    sequences = [engine.steps.new_sequence() for _ in prompts]
    rows: list[bytes] = []

    def keep(*parts: Any) -> None:
        rows.extend(part.copy().tobytes() for part in parts)

    result = engine.steps.prefill(sequences, prompts)
    keep(result.logits, result.hidden, result.tokens)
    for accepted, new in ((2, [[4, 5, 6], [1], [2, 3]]), (0, [[8], [9, 10, 11, 12], [3]]), (1, [[1], [2], [3]])):
        result = engine.steps.verify(sequences, new)
        keep(result.logits, result.hidden, result.tokens)
        for sequence, tokens in zip(sequences, new, strict=True):
            engine.steps.keep(sequence, min(accepted, len(tokens)))
    draft = engine.steps.draft(sequences, [4, 5, 6])
    keep(draft.tokens, draft.probability, draft.hidden)
    draft = engine.steps.draft_more(sequences, draft.tokens.tolist(), draft.hidden)
    keep(draft.tokens, draft.probability, draft.hidden)
    return rows
