"""Whole graphs give the same bits on every instruction set, or GPU, as with the portable kernels, which define them."""

import functools
from pathlib import Path

import numpy as np
import pytest

from support.marks import slow_after
from support.models.packages import Packages
from support.operators.row_bits import portable_kernels
from support.operators.run import LIBRARY
from trigraph.runtime import load

# geometry, quantisation, activations, keys and values: the architectures, and every block type
MODELS = [
    ("trained", "Q8_0", "int8", "f16"),
    ("tiny-moe", "mixed", "int8", "f32"),
    ("tiny-dense", "Q4_K_M", "int8", "f16"),
    ("tiny-dense", "mixed", "float32", "f32"),
    ("tiny-next", "mixed", "int8", "f16"),
    ("tiny-next", "F16", "float32", "f16"),
    ("trained", "Q8_0", "int8", "q8_0"),
    ("tiny-streams", "mixed", "int8", "f16"),
    ("tiny-streams", "F32", "float32", "f32"),
]
STEPS = ((3, 1), (8, 8), (1, 1), (5, 2), (2, 2))  # tokens of a verify, and how many are kept


def history(package: Path, threads: int, device: str) -> list[bytes]:
    """The bits of all rows of two sequences: prefills, verifies with rejected tokens, and drafts."""
    steps = load(package, threads=threads, context=128, sequences=2, device=device).steps
    rng = np.random.default_rng(0)
    text = [[int(token) for token in rng.integers(0, steps.vocab, 64)] for _ in range(2)]
    sequences = [steps.new_sequence() for _ in text]
    rows: list[bytes] = []
    at = 0
    for count in (1, 17):
        result = steps.prefill(sequences, [tokens[at : at + count] for tokens in text])
        rows += [result.logits.tobytes(), result.hidden.tobytes()]
        at += count
    for count, kept in STEPS:
        draft = steps.draft(sequences, [tokens[at] for tokens in text])
        draft = steps.draft_more(sequences, draft.tokens.tolist(), draft.hidden)
        rows += [draft.tokens.tobytes(), draft.probability.tobytes(), draft.hidden.tobytes()]
        result = steps.verify(sequences, [tokens[at : at + count] for tokens in text])
        rows += [result.logits.tobytes(), result.hidden.tobytes(), result.tokens.tobytes()]
        assert np.isfinite(result.logits).all()
        for sequence in sequences:
            steps.keep(sequence, kept)
        at += kept
    return rows


@functools.cache
def defined(package: Path) -> list[bytes]:
    with portable_kernels():
        return history(package, 1, "cpu")


@pytest.mark.parametrize("model", slow_after(3, MODELS), ids="-".join)
def test_every_set_and_any_threads(isa: str, model: tuple[str, str, str, str], packages: Packages) -> None:
    geometry, quant, activations, kv_type = model
    package = packages(geometry, quant, activations=activations, kv_type=kv_type)
    for threads in (1, 2):
        assert history(package, threads, LIBRARY) == defined(package), f"{threads} threads"
