"""Metadata of a synthetic model with residual streams, as llama.cpp's converter writes it."""

from __future__ import annotations

import gguf

from trigraph.models.geometries import Geometry
from trigraph.models.streams import Ngrams, Streams


def add_streams(writer: gguf.GGUFWriter, geometry: Geometry, streams: Streams, end_of_text: int) -> None:
    """The keys of mixers and indexer, and those of n-grams whose texts `end_of_text` ends."""
    prefix, indexer = geometry.architecture, streams.indexer
    recurrent = [*geometry.recurrent, *[False] * geometry.mtp_layers]
    writer.add_uint32(f"{prefix}.hyper_connection.count", streams.count)
    writer.add_uint32(f"{prefix}.hyper_connection.low_rank", streams.low_rank)
    writer.add_uint32(f"{prefix}.attention.indexer.head_count", indexer.heads)
    writer.add_uint32(f"{prefix}.attention.indexer.key_length", indexer.head_dim)
    writer.add_uint32(f"{prefix}.attention.indexer.top_k", indexer.top * indexer.group)
    writer.add_array(f"{prefix}.attention.recurrent_layers", recurrent)
    writer.add_array(f"{prefix}.attention.compress_ratios", [0 if each else indexer.group for each in recurrent])
    if streams.ngrams is not None:
        _add_ngrams(writer, prefix, streams.ngrams, end_of_text)


def _add_ngrams(writer: gguf.GGUFWriter, prefix: str, ngrams: Ngrams, end_of_text: int) -> None:
    writer.add_array(f"{prefix}.ple.layers", [ngrams.layer])
    writer.add_uint32(f"{prefix}.ple.ngram_size", ngrams.size)
    writer.add_uint32(f"{prefix}.ple.heads_per_ngram", ngrams.heads)
    writer.add_uint32(f"{prefix}.ple.conv_kernel", ngrams.conv_kernel)
    writer.add_uint32(f"{prefix}.ple.eos_token_id", end_of_text)
    writer.add_uint32(f"{prefix}.embedding_length_per_layer_input", ngrams.width)
    constants = {
        "layer_multipliers": ngrams.multipliers,
        "head_vocab_sizes": ngrams.moduli,
        "head_offsets": ngrams.offsets,
    }
    for name, values in constants.items():
        kinds = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT64
        writer.add_key_value(f"{prefix}.ple.{name}", list(values), *kinds)
