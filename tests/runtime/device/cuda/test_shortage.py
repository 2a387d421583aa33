"""What an error of a step on a GPU means."""

from types import SimpleNamespace
from typing import cast

import pytest

from trigraph.runtime.device.cuda.library import CudaLibrary
from trigraph.runtime.device.cuda.weight_source import CudaWeightSource
from trigraph.runtime.device.mapped_weights import MappedWeights


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
    source = CudaWeightSource(cast(CudaLibrary, SimpleNamespace(number=1)), MappedWeights(), 1)
    error = source.shortage(RuntimeError(message))
    assert bool(error and "GPU 1 has no memory left; close other programs" in str(error)) == found
