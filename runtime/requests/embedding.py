"""Embeddings of a text: the hidden rows of its tokens, pooled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.requests.options import Options
from trigraph.runtime.sampling.sampling import Sampling

POOLINGS = ("last", "mean", "none")


def embedding(prompt: list[int], pooling: str, context: int) -> tuple[list[int], Options]:
    """A request whose hidden rows are those that `pooling` takes: its prompt, and options.

    Raises TrigraphError for an unknown pooling, and for a prompt that fills the context.
    """
    if pooling not in POOLINGS:
        raise TrigraphError(f"pooling is {quote(pooling)}; it must be one of {', '.join(POOLINGS)}")
    if len(prompt) >= context:
        raise TrigraphError(f"the prompt has {len(prompt)} tokens; an embedding takes at most {context - 1}")
    # A row is recorded when the token behind it is chosen. A prompt has the row of its last token alone, so the other
    # tokens are given as a completion.
    rest = () if pooling == "last" else tuple(prompt[1:])
    options = Options(Sampling(temperature=0), len(rest) + 1, ignore_eos=True, forced=rest, hidden=True)
    return prompt[: len(prompt) - len(rest)], options


def pooled(rows: Sequence[NDArray[np.float32]], pooling: str) -> NDArray[np.float32]:
    """The row of the last token, the mean of all [hidden], or all rows [tokens, hidden]."""
    if pooling == "last":
        return rows[-1]
    every = np.stack(rows)
    if pooling == "none":
        return every
    mean: NDArray[np.float32] = (np.add.reduce(every, axis=0, dtype=np.float64) / len(every)).astype(np.float32)
    return mean
