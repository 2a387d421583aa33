"""What a model with several residual streams has beside the other hybrids: its mixers, n-grams and indexer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trigraph.models import names
from trigraph.models.gguf_file import GGUFFile
from trigraph.models.keys import MAX_SIZE, Keys

GROUP = 4
"""Positions of a group of the indexer, where a file states none: llama.cpp b11549 writes 0 for trunks."""
_MOST_STREAMS = 64
_INTEGER_BITS = 63


@dataclass(frozen=True)
class Ngrams:
    """A table whose rows a layer adds for the last few tokens, found by a hash of their ids."""

    layer: int
    """The Gated DeltaNet layer whose streams the rows are added to, before it."""
    size: int
    """Tokens of the longest n-gram: a row is found by the last 2 to `size` tokens. Also the convolution's dilation."""
    heads: int
    """Rows for each length of n-gram."""
    conv_kernel: int
    width: int
    """Elements of a row."""
    rows: int
    eos: int
    """The token that ends a text: it, and all before it, read as this one."""
    multipliers: tuple[int, ...]
    """For each of the `size` tokens, the last one first: what its id is multiplied by."""
    moduli: tuple[int, ...]
    """For each row [heads x (size - 1)], how many rows of the table the hash chooses from."""
    offsets: tuple[int, ...]
    """For each row, the first of the table's rows that the hash chooses from."""

    @property
    def history(self) -> int:
        """Earlier columns that the convolution of a token reads from."""
        return (self.conv_kernel - 1) * self.size


@dataclass(frozen=True)
class Indexer:
    """Chooses the groups of consecutive positions that a row of attention sees."""

    heads: int
    head_dim: int
    group: int
    """Positions of a group."""
    top: int
    """Groups that a row sees, beside the positions after its last whole group."""

    @property
    def dense_positions(self) -> int:
        """The longest text whose every row sees all positions before it."""
        return self.top * self.group + self.group - 1


@dataclass(frozen=True)
class Streams:
    """Residual streams, and the mixers that read one row from them and write one back."""

    count: int
    low_rank: int
    """Rows of the mixers' inner projection."""
    indexer: Indexer
    ngrams: Ngrams | None
    """None in a file that holds the MTP head alone."""


def read_streams(file: GGUFFile, keys: Keys, hidden: int, vocab: int, recurrent: tuple[bool, ...]) -> Streams:
    """The streams in a file's metadata. Raises TrigraphError, naming the key, for what is missing or contradicts."""
    count = keys.integer("hyper_connection.count", least=2)
    if count > _MOST_STREAMS:
        raise keys.error("hyper_connection.count", f"is {count}, expected at most {_MOST_STREAMS}; download it again")
    ngrams = _read_ngrams(file, keys, hidden, vocab, recurrent) if keys.has("ple.layers") else None
    return Streams(count, keys.integer("hyper_connection.low_rank"), _read_indexer(keys), ngrams)


def _read_indexer(keys: Keys) -> Indexer:
    """Layers without a ratio have the others', or GROUP: the model has no attention that sees all."""
    ratios = keys.array("attention.compress_ratios", "iu", "an array of integers")
    stated = sorted({int(ratio) for ratio in ([] if ratios is None else ratios) if ratio})
    if len(stated) > 1 or (stated and not 1 <= stated[0] <= MAX_SIZE):
        raise keys.error("attention.compress_ratios", f"has {stated[:8]}, expected one ratio; convert the model again")
    group, tokens = (stated or [GROUP])[0], keys.integer("attention.indexer.top_k")
    if tokens % group:
        raise keys.error("attention.indexer.top_k", f"is {tokens}, expected a multiple of {group}; convert it again")
    heads, head_dim = (keys.integer(f"attention.indexer.{name}") for name in ("head_count", "key_length"))
    return Indexer(heads, head_dim, group, tokens // group)


def _read_ngrams(file: GGUFFile, keys: Keys, hidden: int, vocab: int, recurrent: tuple[bool, ...]) -> Ngrams:
    layers = _integers(keys, "ple.layers", 1)
    if not (layers[0] < len(recurrent) and recurrent[layers[0]]):
        raise keys.error("ple.layers", f"is {layers[0]}, expected a Gated DeltaNet layer; convert the model again")
    size, heads = keys.integer("ple.ngram_size", least=2), keys.integer("ple.heads_per_ngram")
    width, rows = keys.integer("embedding_length_per_layer_input"), heads * (size - 1)
    if width * rows != hidden:
        raise keys.error(
            "embedding_length_per_layer_input", f"is {width}, expected {hidden} / {rows}, the rows of a token; "
            "convert the model again",
        )  # fmt: skip
    moduli = _integers(keys, "ple.head_vocab_sizes", rows, least=1)
    offsets = _integers(keys, "ple.head_offsets", rows)
    last = max(offset + modulus for offset, modulus in zip(offsets, moduli, strict=True))
    table = file.tensors.get(names.NGRAM_TABLE)
    held = last if table is None else table.shape[0]
    if last > held:
        raise keys.error("ple.head_offsets", f"reach row {last}, but the table has {held}; convert the model again")
    multipliers = _integers(keys, "ple.layer_multipliers", size)
    if max(multipliers) * vocab >= 1 << _INTEGER_BITS:
        raise keys.error("ple.layer_multipliers", f"has {max(multipliers)}, too large for the hash; convert it again")
    eos = keys.integer("ple.eos_token_id", least=0)
    if eos >= vocab:
        raise keys.error("ple.eos_token_id", f"is {eos}, expected a token below {vocab}; convert the model again")
    kernel = keys.integer("ple.conv_kernel")
    return Ngrams(layers[0], size, heads, kernel, width, held, eos, multipliers, moduli, offsets)


def _integers(keys: Keys, key: str, count: int, least: int = 0) -> tuple[int, ...]:
    integers = keys.array(key, "iu", "an array of integers")
    if integers is None:
        raise keys.error(key, "is missing; convert the model again with a current converter")
    if len(integers) != count or (integers < least).any():
        raise keys.error(
            key, f"is {integers[:20].tolist()}, expected {count} integers of at least {least}; convert the model again"
        )
    return tuple(int(value) for value in integers)


def check_streams(streams: Streams, trunk: tuple[bool, ...], require: Callable[[bool, str, Any, str], None]) -> None:
    """Whether sizes from somebody else's JSON can be true; `require(condition, key, value, expected)` refuses."""
    indexer, ngrams = streams.indexer, streams.ngrams
    sizes = {"count": streams.count, "low_rank": streams.low_rank}
    sizes |= {f"indexer.{name}": getattr(indexer, name) for name in ("heads", "head_dim", "group", "top")}
    if ngrams is not None:
        fields = ("size", "heads", "conv_kernel", "width", "rows")
        sizes |= {f"ngrams.{name}": getattr(ngrams, name) for name in fields}
    for name, size in sizes.items():
        require(1 <= size <= MAX_SIZE, f"config.streams.{name}", size, f"1 to {MAX_SIZE}")
    require(streams.count <= _MOST_STREAMS, "config.streams.count", streams.count, f"at most {_MOST_STREAMS}")
    if ngrams is not None:
        layer = ngrams.layer
        require(0 <= layer < len(trunk) and trunk[layer], "config.streams.ngrams.layer", layer, "a recurrent layer")


def ngram_rows(ngrams: Ngrams, ids: list[int], before: list[int]) -> list[list[int]]:
    """Rows of the table for each of `ids` [T][heads x (size - 1)]; `before` are the tokens in front of them.

    An EOS among the tokens before one hides itself and all in front of it: they read as EOS, as before a text's start.
    """
    text, start = [*before, *ids], len(before)
    found = []
    for at in range(start, len(text)):
        mixed, cut, rows = text[at] * ngrams.multipliers[0], False, list[int]()
        for back in range(1, ngrams.size):
            cut = cut or back > at or text[at - back] == ngrams.eos
            mixed ^= (ngrams.eos if cut else text[at - back]) * ngrams.multipliers[back]
            of_size = slice((back - 1) * ngrams.heads, back * ngrams.heads)
            pairs = zip(ngrams.moduli[of_size], ngrams.offsets[of_size], strict=True)
            rows += [mixed % modulus + offset for modulus, offset in pairs]
        found.append(rows)
    return found
