"""Synthetic GGUF files: random weights with the real structure, sizes and type mixes of published models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import gguf
import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError
from trigraph.models.geometries import geometry as find_geometry
from trigraph.models.staging import staged_file
from trigraph.models.synth import blocks
from trigraph.models.synth.layout import SynthTensor, add_metadata, tensors
from trigraph.models.synth.types import QUANTS, check_quant

__all__ = ["QUANTS", "write_synthetic"]

Progress = Callable[[str, int, int], None]


def write_synthetic(
    geometry: str,
    path: Path,
    *,
    layers: int | None = None,
    vocab: int | None = None,
    experts: int | None = None,
    mtp: bool = True,
    quant: str = "Q4_K_M",
    seed: int = 0,
    progress: Progress | None = None,
) -> None:
    """Write a random model with the named geometry, deterministic by `seed`.

    `layers`, `vocab` and `experts` cut the trunk's layers, the vocabulary and the experts down; `mtp` False leaves
    the MTP head out.
    Dequantised matrices have mean zero and a root mean square of 1/sqrt(inputs), so activations keep a sane size.
    `progress` receives (tensor name, bytes written, bytes in all). The file appears when it is complete: a failure or
    an interruption leaves nothing behind. Raises TrigraphError for bad arguments and a path that cannot be written.
    """
    check_quant(quant)
    if seed < 0:
        raise TrigraphError(f"--seed is {seed}; it must not be negative")
    shape = find_geometry(geometry, layers=layers, vocab=vocab, experts=experts, mtp=mtp)
    wanted = tensors(shape, quant)
    try:
        with staged_file(path) as stage, closing(gguf.GGUFWriter(stage, shape.architecture)) as writer:
            add_metadata(writer, shape, f"synthetic-{geometry}", quant)
            _add_tensors(writer, wanted)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            assert writer.fout is not None
            _write_tensors(writer.fout[0], wanted, seed, progress)
    except OSError as error:
        raise TrigraphError(f"cannot write {path}: {error.strerror or error}") from error


def _add_tensors(writer: gguf.GGUFWriter, wanted: list[SynthTensor]) -> None:
    for tensor in wanted:
        writer.add_tensor_info(
            tensor.name,
            (*tensor.shape[:-1], tensor.row_bytes),
            np.dtype(np.uint8),
            tensor.nbytes,
            raw_dtype=gguf.GGMLQuantizationType[tensor.type],
        )


def _write_tensors(file: BinaryIO, wanted: list[SynthTensor], seed: int, progress: Progress | None) -> None:
    align = gguf.GGUF_DEFAULT_ALIGNMENT
    total = sum(tensor.nbytes for tensor in wanted)
    written = 0
    file.write(bytes(-file.tell() % align))
    for tensor in wanted:
        for piece in _data(tensor, seed):
            file.write(piece.data)
            written += piece.nbytes
            if progress:
                progress(tensor.name, written, total)
        file.write(bytes(-file.tell() % align))


def _data(tensor: SynthTensor, seed: int) -> Iterator[NDArray[np.uint8]]:
    bits = blocks.random_bits(seed, tensor.name)
    if tensor.kind == "weights":
        yield from blocks.random_weights(tensor.type, tensor.count, tensor.rms, bits)
        return
    if tensor.kind == "norm":
        values = 1 + 0.1 * blocks.normal(bits, tensor.count)
    elif tensor.kind == "dt":
        # softplus(bias) log-uniform in [1e-3, 1e-1], as the published models are initialised
        step = 10.0 ** (-3 + 2 * blocks.uniform(bits, tensor.count))
        values = np.log(np.expm1(step))
    else:
        values = -(1 + 15 * blocks.uniform(bits, tensor.count))  # -exp(A_log)
    yield values.astype("<f4").view(np.uint8)
