"""Cross-entropy of the NumPy forward pass on a text."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trigraph.models.reference import Reference


def _loss(logits: npt.NDArray[Any], targets: npt.NDArray[np.int64]) -> float:
    """Mean cross-entropy of logits [T, vocab] against targets [T]."""
    shifted = logits - logits.max(-1, keepdims=True)
    chosen = shifted[np.arange(len(targets)), targets]
    return float(np.mean(np.log(np.exp(shifted).sum(-1)) - chosen))


def reference_losses(reference: Reference, ids: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Of the trunk (token t+1 from tokens 0..t) and of the MTP head (token t+2 from token t+1 and hidden t)."""
    hidden, logits = reference.trunk(ids[:-2])
    _, draft_logits = reference.mtp(ids[1:-1], hidden)
    return _loss(logits, ids[1:-1]), _loss(draft_logits, ids[2:])
