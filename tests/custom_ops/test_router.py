"""Router against its NumPy reference, and the bits of its rows."""

import numpy as np
import pytest

from support.operators.row_bits import Array, run_rows
from support.operators.run import Operator
from trigraph.custom_ops.router.reference import router


def run(logits: Array, k: int, normalize: bool) -> list[Array]:
    outputs = {0: (np.int64, k), 1: (np.float32, k)}
    return run_rows("Router", [logits], [], lambda rows, _: rows, outputs, {"k": k, "normalize": int(normalize)})


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("experts", "k"), [(1, 1), (5, 5), (8, 2), (17, 3), (256, 8), (257, 9), (513, 10), (64, 33)])
def test_against_reference(isa: str, experts: int, k: int, normalize: bool) -> None:
    logits = np.random.default_rng(experts).standard_normal((45, experts), dtype=np.float32) * 4
    ids, weights = run(logits, k, normalize)
    expected_ids, expected = router(logits, k=k, normalize=normalize)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(weights, expected, rtol=2e-6)
    if normalize:
        np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)


@pytest.mark.parametrize("normalize", [True, False])
def test_equal_logits_go_to_the_lowest_ids(isa: str, normalize: bool) -> None:
    logits = np.random.default_rng(0).integers(-2, 3, (40, 64)).astype(np.float32)
    logits[0] = 1
    ids, weights = run(logits, 6, normalize)
    np.testing.assert_array_equal(ids, np.argsort(-logits, axis=-1, kind="stable")[:, :6])
    assert (ids[0] == np.arange(6)).all() and len(set(weights[0].tolist())) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_ids_are_valid_whatever_the_logits_are(isa: str, value: float) -> None:
    logits = np.random.default_rng(0).standard_normal((6, 20), dtype=np.float32)
    logits[0], logits[1, 3], logits[2, :5], logits[3, 19] = value, value, value, value
    ids, _ = Operator("Router", [logits], [np.int64, np.float32], {"k": 4, "normalize": 1})(logits)
    assert all(len(set(row)) == 4 and min(row) >= 0 and max(row) < 20 for row in ids.tolist())


@pytest.mark.parametrize(
    ("shape", "k", "message"),
    [
        ((4,), 1, r"logits has shape \[4\]"),
        ((2, 4), 5, "k is 5, more than the 4 experts"),
        ((2, 4), 0, "k is 0, below"),
    ],
)
def test_errors(shape: tuple[int, ...], k: int, message: str) -> None:
    logits = np.zeros(shape, np.float32)
    with pytest.raises(Exception, match=rf"trigraph\.Router: .*{message}"):
        Operator("Router", [logits], [np.int64, np.float32], {"k": k, "normalize": 1})(logits)
