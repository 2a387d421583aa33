"""Kernels for sm_90 alone take the place of others where TRIGRAPH_SM90_KERNELS=1 asks for them."""

from support.devices.fake_cuda import FakeDevice, kernels
from trigraph.runtime import Engine


def test_a_decode(large: Engine, gpu: FakeDevice) -> None:
    sequence = large.steps.new_sequence()
    large.steps.prefill([sequence], [list(range(16))])
    gpu.events()
    large.steps.verify([sequence], [[1]])
    found = kernels(gpu.events(), "launch own")
    large.steps.release(sequence)
    assert found["bulk_experts"] == 40
    assert not found["few_experts"]
