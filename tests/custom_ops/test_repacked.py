"""Repacked weights: another order, and the same bits of every product and of whole models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.models.packages import Packages
from support.operators.block_weights import (
    REPACKED,
    MatMul,
    activations,
    known_weights,
    random_blocks,
    repacked,
    weights,
)
from support.operators.expert_layer import Layer
from support.operators.run import LIBRARY, Operator, same_bits
from support.requests.promise import PlainText
from trigraph.custom_ops import instruction_sets
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, load
from trigraph.runtime.bench import RequestOptions, bench_requests
from trigraph.runtime.device import choice
from trigraph.runtime.device.device import Device
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.device.repack.weights import SIDE_BY_SIDE, RepackedWeights, repacked_weights
from trigraph.runtime.execution.sessions import SessionGraph

pytestmark = pytest.mark.skipif(LIBRARY == "cuda", reason="weights are repacked for the CPU")
sets = pytest.mark.parametrize("isa", SIDE_BY_SIDE, indirect=True)


def side_by_side(plain: NDArray[np.uint8]) -> bytes:
    """Words of a super-block of all rows of a group, [groups, super-blocks, rows, bytes], then what is left of them."""
    groups, blocks, rows, size = plain.shape
    words = plain[..., : size // 4 * 4].reshape(groups, blocks, rows, -1, 4).transpose(0, 1, 3, 2, 4)
    rest = plain[..., size // 4 * 4 :]
    return np.concatenate([part.reshape(groups, blocks, -1) for part in (words, rest)], axis=-1).tobytes()


@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.parametrize("type", ["Q4_K", "Q5_K", "Q6_K"])
def test_the_order(type: str, rows: int) -> None:
    plain = np.random.default_rng(1).integers(0, 256, (3 * rows, 3 * REPACKED[type]), np.uint8)
    blocks = plain.reshape(3, rows, 3, REPACKED[type]).transpose(0, 2, 1, 3)
    assert repacked(type, plain, rows).tobytes() == side_by_side(blocks)


def parts(packed: NDArray[np.uint8], rows: int, size: int) -> NDArray[np.uint8]:
    """Undoes `side_by_side`: [groups, super-blocks, rows, bytes]."""
    groups = packed.reshape(len(packed) // rows, -1, rows * size)
    words, rest = np.split(groups, [rows * (size // 4 * 4)], axis=-1)
    shape = (*groups.shape[:2], rows)
    words = words.reshape(*groups.shape[:2], -1, rows, 4).swapaxes(2, 3).reshape(*shape, -1)
    return np.concatenate([words, rest.reshape(*shape, -1)], axis=-1)


@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.parametrize(
    ("type", "levels", "unit"),
    [
        ("IQ3_XXS", [4, 12, 20, 28, 36, 44, 52, 62], 0.25),
        ("IQ3_S", [1, 3, 5, 7, 9, 11, 13, 15], 1),
        *[(type, [8, 25, 43], 0.125) for type in ("IQ2_XXS", "IQ2_XS", "IQ2_S")],
    ],
)
def test_levels(type: str, levels: list[int], unit: float, rows: int) -> None:
    """Four bits an element, by what `gguf.quants` says that it stands for."""
    plain = random_blocks(type, 3 * rows, 3, seed=2).reshape(3, rows, 3, -1)
    plain[..., :2] = np.array([1], np.float16).view(np.uint8)
    values = known_weights(plain.reshape(3 * rows, -1), type).reshape(3, rows, 3, 8, 32).transpose(0, 2, 1, 3, 4)
    found = repacked(type, plain.reshape(3 * rows, -1), rows)
    table = np.full((2, 8), np.nan)
    table[:, : len(levels)] = np.multiply.outer([1, -1], levels) * unit
    assert found.shape == (3 * rows, 3 * REPACKED[type])
    packed = parts(found, rows, REPACKED[type])  # group, super-block, row, byte
    assert side_by_side(packed) == found.tobytes()
    scales, codes, d = np.split(packed, [REPACKED[type] - 130, REPACKED[type] - 2], axis=-1)
    odd = 1 + 2 * np.stack([scales & 15, scales >> 4], axis=-1).reshape(*packed.shape[:3], -1, 1)
    codes = codes.reshape(*packed.shape[:3], 8, 16)
    numbers = np.concatenate([codes & 15, codes >> 4], axis=-1)
    runs = table.reshape(-1)[numbers].reshape(*odd.shape[:-1], -1)
    np.testing.assert_array_equal((odd * runs).reshape(values.shape), values)
    assert (d == plain[..., :2].transpose(0, 2, 1, 3)).all()


@sets
@pytest.mark.parametrize("type", REPACKED)
@pytest.mark.parametrize("width", [256, 512, 1280, 2048, 3072])
def test_products(isa: str, type: str, width: int) -> None:
    """As from plain weights, for any number of activation rows and of groups of weight rows."""
    x = activations(70, width)
    x[3:6] = np.where(np.random.default_rng(6).random((3, width)) < 0.5, -1, 1)
    side = SIDE_BY_SIDE[isa]
    for rows, threads in ((side, 1), (5 * side, 1), (17 * side, 2)):
        for plain in (weights(type, rows, width), random_blocks(type, rows, width // 256, seed=rows)):
            plain_product, product = (MatMul(name, "int8", threads) for name in (type, f"{type}_R{side}"))
            whole, packed = plain_product(x, plain), repacked(type, plain, side)
            for count in (*range(1, 19), 23, 24, 25, 63, 64, 65, 70):
                assert same_bits(product(x[:count], packed), whole[:count]), (rows, count)


@sets
@pytest.mark.parametrize(
    ("gate_type", "down_type", "up_type"),
    [("Q4_K", "Q6_K", "Q5_K"), ("Q4_K", "Q6_K", None), ("IQ3_XXS", "IQ3_S", "IQ3_S"), ("IQ2_XXS", "IQ2_S", "IQ2_XS")],
)
def test_experts(isa: str, gate_type: str, down_type: str, up_type: str | None) -> None:
    shape: dict[str, Any] = dict(width=512, ffn=256, experts=6, k=3, activations="int8")
    layer = Layer(**shape, gate_type=gate_type, down_type=down_type, up_type=up_type)
    side = SIDE_BY_SIDE[isa]
    types = {name: value if name == "activations" else f"{value}_R{side}" for name, value in layer.attributes.items()}
    stacks = ((layer.gate_type, layer.gate), (layer.down_type, layer.down), (up_type, layer.up))
    packed = [stack if stack is None or type is None else repacked(type, stack, side) for type, stack in stacks]
    for count in (1, 2, 3, 8, 65):
        inputs = [*layer.tokens(count), *packed]
        (y,) = Operator("GroupedExpertFFN", inputs, [np.float32], types)(*inputs)
        assert same_bits(y, layer.run(*layer.tokens(count))), count


@sets
@pytest.mark.parametrize("type", REPACKED)
def test_rows_in_whole_groups(isa: str, type: str) -> None:
    side = SIDE_BY_SIDE[isa]
    name = f"{type}_R{side}"
    with pytest.raises(Exception, match=rf"input weight has 12 rows, expected a multiple of {side} for type {name}"):
        MatMul(name, "int8")(activations(1, 256), weights(type, 12, 256))
    with pytest.raises(Exception, match=rf'type "{name}" has no kernel'):
        MatMul(name, "float32")


@sets
def test_gate_and_up_in_whole_groups(isa: str) -> None:
    side = SIDE_BY_SIDE[isa]
    layer = Layer(width=256, ffn=3 * side // 2, experts=2, k=1, gate_type="Q4_K", down_type="F32", activations="int8")
    inputs = [*layer.tokens(1), layer.gate, layer.down, None]
    types = layer.attributes | dict(gate_type=f"Q4_K_R{side}")
    with pytest.raises(Exception, match=f"input gate has {3 * side} rows an expert, expected a multiple of {2 * side}"):
        Operator("GroupedExpertFFN", inputs, [np.float32], types)(*inputs)


def opened(packages: Packages, model: Sequence[str], **options: Any) -> Engine:
    return load(packages(*model, activations="int8", kv_type="f16"), context=200, **options)


@sets
@pytest.mark.parametrize("model", [("tiny-moe", "Q4_K_M"), ("tiny-dense", "mixed"), ("tiny-next", "Q4_K_M")])
def test_models(isa: str, model: Sequence[str], packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "instruction_set", lambda: isa)
    engine = opened(packages, model, repack="on")
    verify = engine.steps._verify
    assert isinstance(verify, SessionGraph) and isinstance(verify._source, RepackedWeights)
    assert verify._source.copies
    plain, copied = PlainText(opened(packages, model), 60, 0), PlainText(engine, 60, 0)
    assert copied.rows == plain.rows
    assert copied.bits(57) == plain.bits(57)


@sets
def test_a_draft_vocabulary(isa: str, packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft graph reads the first rows of the output matrix, and the other graphs all of it."""
    monkeypatch.setattr(choice, "instruction_set", lambda: isa)
    folder = packages("tiny-moe", "Q4_K_M", activations="int8", draft_vocab=64)
    plain, copied = (PlainText(load(folder, context=200, repack=repack), 40, 0) for repack in ("off", "on"))
    assert copied.rows == plain.rows and copied.bits(37) == plain.bits(37)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", sorted({*instruction_sets()} - {*SIDE_BY_SIDE}))
def test_kernels_that_read_plain_weights(kernels: str, packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "instruction_set", lambda: kernels)
    monkeypatch.setattr("trigraph.runtime.bench.run.memory_reader", lambda _: lambda: 1e9)  # which reads half a GB
    with pytest.raises(TrigraphError, match=f"here those of {kernels} run, which read weights as they are"):
        load(packages("tiny-moe", "Q4_K_M"), repack="on")
    with pytest.raises(TrigraphError, match="which read weights as they are"):
        bench_requests(packages("tiny-moe", "Q4_K_M"), RequestOptions(1, repack="on"))


class Elsewhere(Device):
    """A GPU that is not there."""

    name = "cuda"
    is_host = False


def test_another_device() -> None:
    with pytest.raises(TrigraphError, match="repacked weights are for the CPU, and the device is cuda"):
        repacked_weights(MappedWeights(), Elsewhere(None, "CUDA"))
