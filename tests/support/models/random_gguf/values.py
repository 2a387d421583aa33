"""Random values of tensors, as a file stores them."""

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from support.models.random_gguf.tensors import Item

Array = npt.NDArray[Any]


def fitting_type(kind: str, row: int) -> str:
    """`kind`, or the type that stands in for it when its blocks do not fit a row."""
    for candidate in (kind, "Q8_0"):
        if row % GGML_QUANT_SIZES[GGMLQuantizationType[candidate]][0] == 0:
            return candidate
    return "F32"


def draw(rng: np.random.Generator, item: Item, kind: str) -> Array:
    if item.fill == "norm":
        return (1 + 0.1 * rng.standard_normal(item.shape)).astype(np.float32)
    if item.fill == "a":  # -exp(A_log)
        return (-rng.uniform(1, 16, item.shape)).astype(np.float32)
    if item.fill == "dt":  # softplus(dt) is log-uniform in [0.001, 0.1]
        step = np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), item.shape))
        return (step + np.log(-np.expm1(-step))).astype(np.float32)
    if kind in _SCALES:
        return _random_blocks(rng, item.shape, kind, item.std)
    if kind == "NVFP4":
        return _random_nvfp4(rng, item.shape, item.std)
    values = rng.standard_normal(item.shape, dtype=np.float32)
    values *= np.float32(item.std)
    if kind == "F32":
        return values
    if kind == "F16":
        return values.astype(np.float16)
    if kind == "BF16":  # truncated, as in the files that the oracle runs used
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return gguf.quants.quantize(values, GGMLQuantizationType[kind])


# Types that gguf.quants cannot quantise: byte offsets of the block's float16 scale and, if it has one, of the float16
# factor of its minimum, and the ratio of the two that puts the mean of random blocks at zero.
_SCALES: dict[str, tuple[int, int | None, float]] = {
    "Q2_K": (80, 82, 1.5),
    "Q3_K": (108, None, 0),
    "Q4_K": (0, 2, 7.5),
    "Q5_K": (0, 2, 15.5),
    "Q6_K": (208, None, 0),
    "IQ2_XXS": (0, None, 0),
    "IQ2_XS": (0, None, 0),
    "IQ2_S": (0, None, 0),
    "IQ3_XXS": (0, None, 0),
    "IQ3_S": (0, None, 0),
    "IQ1_S": (0, None, 0),
    "IQ4_NL": (0, None, 0),
    "IQ4_XS": (0, None, 0),
}


def _random_blocks(rng: np.random.Generator, shape: tuple[int, ...], kind: str, std: float) -> npt.NDArray[np.uint8]:
    """Random blocks of a type in `_SCALES` with about the given standard deviation: uint8 [..., row bytes]."""
    quant = GGMLQuantizationType[kind]
    block, block_bytes = GGML_QUANT_SIZES[quant]
    scale_at, minimum_at, ratio = _SCALES[kind]
    data = rng.integers(0, 256, (int(np.prod(shape)) // block, block_bytes), dtype=np.uint8)

    def set_scales(rows: npt.NDArray[np.uint8], scale: Array) -> None:
        rows[:, scale_at : scale_at + 2] = scale.astype(np.float16).reshape(-1, 1).view(np.uint8)
        if minimum_at is not None:
            rows[:, minimum_at : minimum_at + 2] = (scale * ratio).astype(np.float16).reshape(-1, 1).view(np.uint8)

    sample = data[:256].copy()
    set_scales(sample, np.ones(len(sample)))
    unit = float(gguf.quants.dequantize(sample, quant).std())
    set_scales(data, std / unit * rng.uniform(0.8, 1.2, len(data)))
    return data.reshape(*shape[:-1], shape[-1] // block * block_bytes)


def _random_nvfp4(rng: np.random.Generator, shape: tuple[int, ...], std: float) -> npt.NDArray[np.uint8]:
    """Four scales of eight bits, then levels whose root mean square is 5.9, twice as large as they are."""
    data = rng.integers(0, 256, (int(np.prod(shape)) // 64, 36), dtype=np.uint8)
    data[:, :4] = (7 + round(np.log2(std / 5.9 * 2))) << 3
    return data.reshape(*shape[:-1], shape[-1] // 64 * 36)
