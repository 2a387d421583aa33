"""Writes the file: header, metadata, and tensors whose random values are made piece by piece."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, TypeAlias

import gguf
import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError
from trigraph.models.staging import staged_file
from trigraph.models.synth import blocks
from trigraph.models.synth.layout import SynthTensor

Progress: TypeAlias = Callable[[str, int, int], None]
"""Gets the name of a tensor, bytes written, and bytes in all."""


def write_file(
    path: Path,
    architecture: str,
    add_metadata: Callable[[gguf.GGUFWriter], None],
    wanted: list[SynthTensor],
    seed: int,
    progress: Progress | None,
) -> None:
    """Write the tensors, deterministic by `seed`. The file appears when it is complete.

    Raises TrigraphError for a negative seed, a path that cannot be written, and a disk without room for the file.
    """
    if seed < 0:
        raise TrigraphError(f"--seed is {seed}; it must not be negative")
    needed = sum(tensor.nbytes for tensor in wanted if tensor.kind != "hollow")
    try:
        if path.is_dir():
            raise TrigraphError(f"{path}: is a folder; name a file")
        if needed > (free := shutil.disk_usage(path.parent).free):
            raise TrigraphError(f"{path}: takes {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of the disk are free")
        with staged_file(path) as stage, closing(gguf.GGUFWriter(stage, architecture)) as writer:
            add_metadata(writer)
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
        hole = tensor.nbytes if tensor.kind == "hollow" else 0
        file.truncate(file.seek(hole, os.SEEK_CUR))
        written += hole
        for piece in () if hole else _data(tensor, seed):
            file.write(piece.data)
            written += piece.nbytes
            if progress:
                progress(tensor.name, written, total)
        file.write(bytes(-file.tell() % align))


def _scaled(pieces: Iterator[NDArray[np.uint8]], tensor: SynthTensor, seed: int) -> Iterator[NDArray[np.uint8]]:
    """Float32 rows times their factors."""
    rows = np.concatenate([piece.reshape(-1) for piece in pieces]).view("<f4").reshape(len(tensor.row_scales), -1)
    order = np.random.Generator(blocks.random_bits(seed, f"{tensor.name}, scaled")).permutation(len(rows))
    yield (rows * np.array(tensor.row_scales, "<f4")[order, None]).reshape(-1).view(np.uint8)


def _data(tensor: SynthTensor, seed: int) -> Iterator[NDArray[np.uint8]]:
    bits = blocks.random_bits(seed, tensor.name)
    if tensor.kind == "weights":
        pieces = blocks.random_weights(tensor.type, tensor.count, tensor.rms, bits)
        yield from _scaled(pieces, tensor, seed) if tensor.row_scales else pieces
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
