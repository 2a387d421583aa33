"""BlockMatMul against its NumPy reference, and the law that a row's bits depend on that row alone."""

import gguf
import numpy as np
import pytest

from support.operators.block_weights import BLOCK, TYPES, MatMul, activations, put_scales, weights, widths
from support.operators.row_bits import run_rows
from support.operators.run import LIBRARY, Operator, same_bits
from trigraph.custom_ops.block_matmul.reference import block_matmul, gated_block_matmul
from trigraph.custom_ops.blocks.formats.reference import group_size, quantise_activations, unpack
from trigraph.models.synth.blocks import HALVES


@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize("type", TYPES)
def test_against_reference(isa: str, type: str, kind: str) -> None:
    matmul = MatMul(type, kind, threads=2)
    for width in widths(type):
        for tokens, rows in ((1, 65), (3, 63), (63, 1), (65, 3)):
            weight, x = weights(type, rows, width), activations(tokens, width)
            expected = block_matmul(x, weight, type, kind)
            # Rounding of float32 sums, relative to what is added up; a min is added up on its own.
            bound = 4e-6 * np.abs(x).sum(axis=1, keepdims=True) * np.abs(unpack(weight, type)).max()
            assert (np.abs(matmul(x, weight) - expected) <= bound).all(), (width, tokens, rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize("type", TYPES)
def test_bits_depend_on_one_row_and_one_weight_row(isa: str, type: str, kind: str) -> None:
    width = 1027 if BLOCK[type] == 1 else 1024 + BLOCK[type]
    weight, x = weights(type, 70, width), activations(65, width)
    one, two = MatMul(type, kind), MatMul(type, kind, threads=2)
    whole = one(x, weight)
    assert same_bits(two(x, weight), whole)
    for count in (*range(1, 9), 16, 17):
        for matmul in (one, two):
            assert same_bits(matmul(x[count : 2 * count], weight), whole[count : 2 * count]), count
    for rows in (1, 15, 16, 17):
        assert same_bits(one(x[:5], weight[3 : 3 + rows]), np.ascontiguousarray(whole[:5, 3 : 3 + rows])), rows


@pytest.mark.slow
@pytest.mark.parametrize("width", [256, 512, 2048, 5120, 17408])
@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize("type", ["F32", "Q8_0", "Q4_K", "Q6_K"])
def test_bits_of_wide_rows(isa: str, type: str, kind: str, width: int) -> None:
    """Few activations meet one or two weight rows at a time as long as they are not too wide; many do in panels."""
    weight, x = weights(type, 35, width), activations(9, width)
    matmul = MatMul(type, kind)
    whole = matmul(x, weight)
    for first, count in ((0, 1), (0, 2), (1, 3), (3, 4), (2, 5), (1, 6), (2, 7), (0, 8), (8, 1)):
        assert same_bits(matmul(x[first : first + count], weight), whole[first : first + count]), count
    expected = block_matmul(x, weight, type, kind)
    assert np.abs(whole - expected).max() <= 2e-5 * np.abs(expected).max()


def test_bits_of_half_rows(isa: str) -> None:
    """Two rows of Q8_0 that fill a super-block together are done at a time, an odd number of them apart."""
    weight, x = weights("Q8_0", 66, 128), activations(8, 128)
    matmul = MatMul("Q8_0", "int8")
    expected = block_matmul(x, weight, "Q8_0", "int8")
    for tokens in range(1, 9):
        odd = matmul(x[:tokens], weight[:65])
        assert np.abs(odd - expected[:tokens, :65]).max() <= 2e-5 * np.abs(expected).max()
        for rows in (2, 14, 16, 18, 30, 34, 64):
            assert same_bits(matmul(x[:tokens], weight[:rows]), np.ascontiguousarray(odd[:, :rows])), (tokens, rows)


@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize(
    "types", [("Q4_K", "Q6_K"), ("F32", "F16", "Q8_0", "Q8_0"), ("Q8_0", "Q5_0", "Q8_0"), ("F32", "F32")]
)
def test_several_weights(isa: str, types: tuple[str, ...], kind: str) -> None:
    """Each result is what its weight gives alone, to the bit."""
    x = activations(17, 768)
    matrices = [weights(type, rows, 768) for type, rows in zip(types, (130, 1, 33, 64), strict=False)]
    attributes = {"types": ",".join(types), "activations": kind}
    outputs = {i: (np.float32, len(matrix)) for i, matrix in enumerate(matrices)}
    results = run_rows("BlockMatMul", [x], matrices, lambda rows, constants: rows + constants, outputs, attributes)
    for type, matrix, y in zip(types, matrices, results, strict=True):
        assert same_bits(y, MatMul(type, kind)(x, matrix)), type


@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize(("type", "width"), [("Q8_0", 96), ("Q4_K", 512), ("F32", 33), ("Q6_K", 5120)])
def test_gated(isa: str, type: str, width: int, kind: str) -> None:
    gate, up, weight = activations(19, width), activations(19, width)[::-1].copy() * 3, weights(type, 50, width)
    attributes = {"type": type, "activations": kind}
    (y,) = run_rows(
        "GatedBlockMatMul",
        [gate, up],
        [weight],
        lambda r, c: r + c,
        {0: (np.float32, 50)},
        attributes,
    )
    expected = gated_block_matmul(gate, up, weight, type, kind)
    if kind == "float32" or type == "F32":
        assert np.abs(y - expected).max() <= 3e-6 * np.abs(expected).max()
    else:  # a code may be the next one where the two gates differ in their last bits
        assert np.linalg.norm(y - expected) <= 2e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize(("type", "width"), [("Q5_0", 320), ("F32", 33), ("Q4_K", 512)])
def test_a_gate_alone(isa: str, type: str, width: int, kind: str) -> None:
    """silu(scale * gate): with a power of two, the bits of a gate that is smaller by it, times ones."""
    gate, weight = activations(19, width), weights(type, 50, width)
    attributes, outputs = {"type": type, "activations": kind, "scale": 0.25}, {0: (np.float32, 50)}
    (y,) = run_rows("GatedBlockMatMul", [gate], [weight], lambda r, c: [r[0], None, c[0]], outputs, attributes)
    both = [gate * np.float32(0.25), np.ones_like(gate), weight]
    (expected,) = Operator("GatedBlockMatMul", both, [np.float32], {"type": type, "activations": kind})(*both)
    assert same_bits(y, expected)
    assert np.linalg.norm(y - gated_block_matmul(gate, None, weight, type, kind, 0.25)) <= 2e-3 * np.linalg.norm(y)
    with pytest.raises(Exception, match="input up is there, but attribute scale is for a gate alone"):
        Operator("GatedBlockMatMul", both, [np.float32], attributes)(*both)


def test_types_and_weights_must_agree() -> None:
    inputs = [np.zeros((1, 256), np.float32), np.zeros((1, 144), np.uint8)]
    for types, message in (
        ("Q4_K,Q4_K", "input weight_1 is missing, but attribute types names 2"),
        (",".join(["Q4_K"] * 5), "with more than 4 types"),
        ("Q4_K,", 'type "" has no kernel'),
    ):
        outputs = [np.float32] * min(4, len(types.split(",")))
        with pytest.raises(Exception, match=message):
            Operator("BlockMatMul", inputs, outputs, {"types": types})(*inputs)


def test_outputs_must_agree_with_inputs() -> None:
    x = np.zeros((2, 16), np.float32)
    for inputs, outputs in (([x, x[0]], 2), ([x, x[0], x], 1)):
        with pytest.raises(Exception, match=f"RMSNorm: the node has {outputs} outputs"):
            Operator("RMSNorm", inputs, [np.float32] * outputs, {"eps": 1e-6})(*inputs)


def test_many_tiles(isa: str) -> None:
    weight, x = weights("Q4_K", 2600, 2048), activations(33, 2048)
    expected = block_matmul(x, weight, "Q4_K", "int8")
    results = [MatMul("Q4_K", "int8", threads)(x, weight) for threads in (1, 2)]
    assert same_bits(results[0], results[1])
    assert np.abs(results[0] - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("type", ["F16", "Q8_0"])
def test_blocks_of_float32_rows(isa: str, type: str) -> None:
    """More rows than a block has, and than a tile has columns: the bits that each row has among few."""
    weight, x = weights(type, 150, 288), activations(270, 288)
    results = [MatMul(type, "float32", threads)(x, weight) for threads in (1, 2)]
    assert same_bits(results[0], results[1])
    few = MatMul(type, "float32")
    assert same_bits(np.concatenate([few(x[i : i + 15], weight) for i in range(0, 270, 15)]), results[0])


@pytest.mark.parametrize("type", HALVES)
def test_integer_sums_are_exact(isa: str, type: str) -> None:
    """Integer activations up to 127 are their own codes, and scales of one make every sum an integer below 2^24."""
    width = max(256, BLOCK[type])
    rng = np.random.default_rng(1)
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]][1]
    raw = rng.integers(0, 256, (64, width // BLOCK[type], size), dtype=np.uint8)
    raw[:2] = np.array([0, 255], np.uint8)[:, None, None]  # the extreme codes
    put_scales(type, raw, lambda: np.ones(raw.shape[:2], np.float16))
    weight = raw.reshape(64, -1)
    x = rng.integers(-127, 128, (9, width)).astype(np.float32)
    x[0], x[1], x[2:, :: group_size(type)] = 127, -127, 127
    expected = x.astype(np.float64) @ unpack(weight, type).astype(np.float64).T
    exact = np.abs(x).astype(np.float64) @ np.abs(unpack(weight, type)).astype(np.float64).T < 1 << 23
    y = MatMul(type, "int8")(x, weight)
    assert exact.any() and np.array_equal(y[exact], expected[exact])
    assert np.allclose(y, expected, rtol=1e-6, atol=1)


@pytest.mark.parametrize("parts", [2, 4, 8])
@pytest.mark.parametrize("type", ["Q8_0", "MXFP4", "Q4_K", "Q6_K", "IQ4_XS"])
def test_sums_that_several_devices_share(isa: str, type: str, parts: int) -> None:
    """Each takes some of the eight chains of a product and adds them up; their sums, joined as a tree, are its bits."""
    step, chains = group_size(type), np.array([0, 4, 2, 6, 1, 5, 3, 7]).reshape(parts, -1)
    width = 19 * step
    weight, x, matmul = weights(type, 33, width), activations(5, width), MatMul(type, "int8")
    chain = np.arange(width) // step % 8
    sums = [matmul(np.where(np.isin(chain, own), x, np.float32(0)), weight) for own in chains]
    while len(sums) > 1:
        sums = [one + other for one, other in zip(sums[::2], sums[1::2], strict=True)]
    assert same_bits(sums[0], matmul(x, weight))


@pytest.mark.skipif(LIBRARY == "cuda", reason="a device's memory is aligned")
@pytest.mark.parametrize("type", ["F32", "Q8_0", "Q4_K"])
def test_odd_alignment(isa: str, type: str) -> None:
    weight, x = weights(type, 37, 512), activations(3, 512)
    buffer = np.zeros(weight.nbytes + 1, np.uint8)
    buffer[1:] = weight.view(np.uint8).reshape(-1)
    odd = buffer[1:].view(weight.dtype).reshape(weight.shape)
    assert odd.ctypes.data % 2 == 1
    for kind in ("float32", "int8"):
        matmul = MatMul(type, kind)
        assert same_bits(matmul(x, odd), matmul(x, weight))


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_not_a_number_stays_in_its_row(isa: str, kind: str) -> None:
    weight, x = weights("Q4_K", 20, 512), activations(4, 512)
    matmul = MatMul("Q4_K", kind)
    clean = matmul(x, weight)
    x[1, 300], x[2, 7] = np.nan, np.inf
    y = matmul(x, weight)
    assert np.isnan(y[1]).all() and not np.isfinite(y[2]).any()
    assert same_bits(y[[0, 3]], clean[[0, 3]])


def test_tiny_and_zero_activations(isa: str) -> None:
    weight = weights("Q8_0", 5, 256)
    x = np.zeros((3, 256), np.float32)
    x[1], x[2] = 1e-38, 1e-30
    y = MatMul("Q8_0", "int8")(x, weight)
    codes, scales = quantise_activations(x, 32)
    assert not y[:2].any() and codes[2].all() and np.isfinite(scales).all()
    assert np.allclose(y[2], block_matmul(x, weight, "Q8_0", "int8")[2], rtol=1e-4, atol=0)


@pytest.mark.parametrize(("tokens", "rows"), [(0, 5), (3, 0), (0, 0)])
def test_empty(isa: str, tokens: int, rows: int) -> None:
    weight = np.zeros((rows, 144), np.uint8)
    assert MatMul("Q4_K")(np.zeros((tokens, 256), np.float32), weight).shape == (tokens, rows)


@pytest.mark.parametrize(
    ("x", "weight", "type", "message"),
    [
        ((256,), (5, 144), "Q4_K", r"x has shape \[256\]"),
        ((1, 256), (5, 2, 144), "Q4_K", "weight has 3 dimensions"),
        ((1, 256), (144,), "Q4_K", "weight has 1 dimensions"),
        ((1, 256), (5, 143), "Q4_K", "weight has rows of 143 bytes, expected 144"),
        ((1, 512), (5, 144), "Q4_K", "weight has rows of 144 bytes, expected 288"),
        ((1, 128), (5, 72), "Q4_K", "width 128 is no multiple of the 256"),
        ((1, 256), (5, 256), "F16", "weight holds uint8, expected float16"),
        ((1, 256), (5, 256), "Q7_K", 'type "Q7_K" has no kernel'),
    ],
)
def test_errors(x: tuple[int, ...], weight: tuple[int, ...], type: str, message: str) -> None:
    inputs = [np.zeros(x, np.float32), np.zeros(weight, np.uint8)]
    with pytest.raises(Exception, match=message):
        Operator("BlockMatMul", inputs, [np.float32], {"types": type})(*inputs)


def test_unknown_activations() -> None:
    inputs = [np.zeros((1, 256), np.float32), np.zeros((1, 144), np.uint8)]
    with pytest.raises(Exception, match='activations is "int4"'):
        Operator("BlockMatMul", inputs, [np.float32], {"types": "Q4_K", "activations": "int4"})
