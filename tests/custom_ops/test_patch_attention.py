"""PatchAttention against its NumPy reference and transformers, the bits of its rows, and its errors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators.run import LIBRARY, Operator, same_bits
from trigraph.custom_ops.patch_attention.reference import patch_attention

Array = NDArray[Any]
THETA = 1e4
LONG = 300 if LIBRARY == "cuda" else 777  # the emulator of a GPU is slow
SHAPES = [(2, 64), (1, 72), (3, 4), (2, 20), (1, 128)]  # heads, width of a head
LENGTHS = [[1], [3], [63], [65], [1, 256, 2, 257], [LONG, 5]]


def draw(lengths: Sequence[int], heads: int, width: int) -> list[Array]:
    count = sum(lengths)
    rng = np.random.default_rng(count + width)
    return [
        rng.standard_normal((count, 3 * heads * width), dtype=np.float32),
        rng.integers(0, 100, (2, count), np.int32),
        np.cumsum([0, *lengths], dtype=np.int32),
    ]


def part(inputs: Sequence[Array], image: int) -> list[Array]:
    """One of the images alone."""
    qkv, places, starts = inputs
    rows = slice(starts[image], starts[image + 1])
    return [qkv[rows], places[:, rows], np.array([0, rows.stop - rows.start], np.int32)]


@functools.cache
def operator(isa: str, heads: int, threads: int) -> Operator:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIGRAPH_ISA", "" if isa == "cuda" else isa)
        library = "cuda" if isa == "cuda" else "cpu"
        attributes = {"heads": heads, "rope_theta": THETA}
        return Operator(
            "PatchAttention", draw([2], heads, 4), [np.float32], attributes, threads=threads, library=library
        )


def run(isa: str, inputs: Sequence[Array], heads: int, threads: int = 1) -> Array:
    shape = (len(inputs[0]), inputs[0].shape[1] // 3)
    return np.asarray(operator(isa, heads, threads)(*inputs, output_shapes=[shape])[0])


@pytest.mark.parametrize(("heads", "width"), SHAPES)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_reference_and_bits(isa: str, lengths: list[int], heads: int, width: int) -> None:
    """Images alone, two threads and every instruction set have the same bits."""
    inputs = draw(lengths, heads, width)
    y = run(isa, inputs, heads)
    wanted = patch_attention(*inputs, heads=heads, rope_theta=THETA)
    np.testing.assert_allclose(y, wanted, rtol=0, atol=3e-6)
    assert same_bits(run("portable", inputs, heads), y)
    assert same_bits(run(isa, inputs, heads, threads=2), y)
    for image in range(len(lengths)):
        rows = slice(inputs[2][image], inputs[2][image + 1])
        assert same_bits(run(isa, part(inputs, image), heads), y[rows])


def test_a_patch_is_a_function_of_its_query_and_the_image(isa: str) -> None:
    """Other queries, and their order, change nothing for a row."""
    qkv, places, starts = draw([70], 2, 24)
    y = run(isa, [qkv, places, starts], 2)
    other = qkv.copy()
    other[:50, :48] = 9
    changed = run(isa, [other, places, starts], 2)
    assert same_bits(changed[50:], y[50:]) and not same_bits(changed, y)


def test_scores_that_differ_by_much(isa: str) -> None:
    """The largest score is in another split than most, and exponentials of others vanish."""
    qkv, places, starts = draw([600], 1, 16)
    qkv[:, :32] *= 12
    y = run(isa, [qkv, places, starts], 1)
    np.testing.assert_allclose(y, patch_attention(qkv, places, starts, heads=1, rope_theta=THETA), rtol=0, atol=2e-4)
    assert same_bits(run("portable", [qkv, places, starts], 1), y)


def test_another_images_nan_stays_there(isa: str) -> None:
    inputs = draw([20, 30, 10], 2, 8)
    y = run(isa, inputs, 2)
    inputs[0][20:50] = np.nan
    dirty = run(isa, inputs, 2)
    assert np.isnan(dirty[20:50]).all()
    assert same_bits(dirty[:20], y[:20]) and same_bits(dirty[50:], y[50:])


def test_more_heads_than_are_packed_together(isa: str) -> None:
    heads, images = 20, 3 if LIBRARY == "cuda" else 650  # 17 heads of 96 floats a patch would fill the memory
    qkv, places, starts = draw([16], heads, 48)
    many = [np.tile(qkv, (images, 1)), np.tile(places, (1, images)), 16 * np.arange(images + 1, dtype=np.int32)]
    alone = run(isa, [qkv, places, starts], heads)
    assert same_bits(run(isa, many, heads, threads=2), np.tile(alone, (images, 1)))


@pytest.mark.parametrize(("heads", "width"), [(4, 64), (2, 72)])
def test_transformers(isa: str, heads: int, width: int) -> None:
    """The attention of transformers' vision tower, without its projections."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    qwen = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    lengths = [12, 35]
    qkv, places, starts = draw(lengths, heads, width)
    frequencies = 1e4 ** (-torch.arange(0, width // 2, 2).double() / (width // 2))
    angle = (torch.from_numpy(places.T).double()[:, :, None] * frequencies).flatten(1)
    angle = torch.cat([angle, angle], -1)
    q, k, v = torch.from_numpy(qkv).double().reshape(len(qkv), 3, heads, width).unbind(1)
    q, k = qwen.apply_rotary_pos_emb_vision(q, k, angle.cos(), angle.sin())
    mixed = [
        torch.nn.functional.scaled_dot_product_attention(*(x[start:end].transpose(0, 1).double() for x in (q, k, v)))
        for start, end in pairwise(starts)
    ]
    wanted = torch.cat(mixed, 1).transpose(0, 1).reshape(len(qkv), -1).numpy()
    np.testing.assert_allclose(run(isa, [qkv, places, starts], heads), wanted, rtol=0, atol=5e-6)


def test_no_patches() -> None:
    assert run(LIBRARY if LIBRARY == "cuda" else "portable", draw([], 2, 8), 2).shape == (0, 16)


ERRORS: dict[str, tuple[int, Any, str]] = {
    "first start": (2, [1, 3, 5], "cu_seqlens starts at 1, not at 0"),
    "falling starts": (2, [0, 4, 3], "cu_seqlens goes from 4 to 3: sequence 1 has no rows"),
    "an empty image": (2, [0, 0, 5], "cu_seqlens goes from 0 to 0: sequence 0 has no rows"),
    "too few patches": (2, [0, 3, 4], "cu_seqlens ends at 4, but there are 5 rows"),
    "too many patches": (2, [0, 3, 2**31 - 1], "cu_seqlens ends at 2147483647, but there are 5 rows"),
    "no starts": (2, [], "cu_seqlens is empty"),
    "no images": (2, [0], "cu_seqlens .* 5 rows"),
    "a negative row": (1, [[0, -1, 0, 0, 0], [0] * 5], r"places\[0\]\[1\] is -1, below 0"),
    "a negative column": (1, [[0] * 5, [0, 0, 0, 0, -(2**31)]], r"places\[1\]\[4\] is -2147483648, below 0"),
    "one axis": (1, [[0] * 5], r"places has shape \[1, 5\], expected \[2, 5\]"),
}


@pytest.mark.parametrize("what", ERRORS)
def test_errors(what: str) -> None:
    at, values, message = ERRORS[what]
    inputs = draw([3, 2], 2, 8)
    inputs[at] = np.array(values, np.int32)
    isa = "cuda" if LIBRARY == "cuda" else "portable"
    with pytest.raises(Exception, match=rf"trigraph\.PatchAttention: input {message}"):
        operator(isa, 2, 1)(*inputs)


@pytest.mark.parametrize(("heads", "columns"), [(2, 47), (2, 54), (2, 36), (5, 48), (2**62, 48), (1, 3 * 260), (1, 0)])
def test_columns_that_are_no_heads(heads: int, columns: int) -> None:
    inputs = draw([5], 1, 4)
    inputs[0] = np.zeros((5, columns), np.float32)
    with pytest.raises(Exception, match=f"input qkv has {columns} columns, not 3 x {heads} heads"):
        Operator("PatchAttention", inputs, [np.float32], {"heads": heads, "rope_theta": THETA})(*inputs)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"heads": 0}, "heads is 0, expected at least 1"),
        ({"heads": -3}, "heads is -3, expected at least 1"),
        ({"rope_theta": 0.0}, "rope_theta is 0, not above 0"),
        ({"rope_theta": float("nan")}, "rope_theta is nan"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
    ],
)
def test_attributes(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=f"attribute {message}"):
        Operator("PatchAttention", draw([1], 2, 4), [np.float32], {"heads": 2, "rope_theta": THETA} | attributes)
