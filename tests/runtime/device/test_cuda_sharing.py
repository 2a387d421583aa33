"""What an error of a step on a GPU means."""

import pytest

from trigraph.runtime.device.cuda_sharing import shortage


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("CUDA failure 2: out of memory", True),
        ("BFCArena: Available memory of 5 is smaller than requested bytes of 9", True),
        ("running NormedBlockMatMul node. Name:'x' Status Message: ONNX Runtime failed in GetOutput", True),
        ("PagedAttention: input page_table[0][0] is page 99, outside [0, 2)", False),
    ],
)
def test_a_want_of_memory_is_known_by_its_words(message: str, found: bool) -> None:
    error = shortage(RuntimeError(message), None)
    assert bool(error and "the GPU has no memory left; close other programs" in str(error)) == found
