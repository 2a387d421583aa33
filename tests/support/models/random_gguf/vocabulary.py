"""A byte-level vocabulary whose merges are learnt from a short text."""

from functools import cache
from itertools import pairwise

import gguf
from gguf import GGUFWriter

# Text that the vocabulary's merges are learnt from.
_TEXT = (
    "the quick brown fox jumps over the lazy dog and then the dog runs after the fox in the field near the river. "
    "once upon a time there was a small model that could read every file and write every graph. "
    "def main(): return sum(x for x in range(10)) # the answer is that this is only a test of the tokenizer. "
    "it is what it is, and what it was before it was not what it will be after the next token is drawn. "
) * 3
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|pad|>")
_MAX_MERGED = 456


def add_vocabulary(w: GGUFWriter, size: int, pre: str) -> None:
    """Byte-level BPE: 256 bytes, merges learnt from _TEXT, unused entries, special tokens at the end."""
    plain = size - len(_SPECIAL)
    tokens, merges = _learn_merges(min(plain, _MAX_MERGED))
    unused = [f"[unused{index}]" for index in range(len(tokens), plain)]
    ids = {text: plain + index for index, text in enumerate(_SPECIAL)}
    kinds = gguf.TokenType
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list([*tokens, *unused, *_SPECIAL])
    w.add_token_types([kinds.NORMAL] * len(tokens) + [kinds.UNUSED] * len(unused) + [kinds.CONTROL] * len(_SPECIAL))
    w.add_token_merges(merges)
    w.add_eos_token_id(ids["<|im_end|>"])
    w.add_pad_token_id(ids["<|endoftext|>"])
    w.add_bos_token_id(ids["<|endoftext|>"])
    w.add_add_bos_token(False)


def _byte_letters() -> list[str]:
    """GPT-2's printable stand-in for each byte."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte if byte in printable else 256 + others.index(byte)) for byte in range(256)]


@cache
def _learn_merges(size: int) -> tuple[list[str], list[str]]:
    letters = _byte_letters()
    words: dict[tuple[str, ...], int] = {}
    for index, text in enumerate(_TEXT.split(" ")):
        if text:
            word = tuple(letters[byte] for byte in ((" " if index else "") + text).encode())
            words[word] = words.get(word, 0) + 1
    tokens, merges = list(letters), []
    while len(tokens) < size:
        counts: dict[tuple[str, str], int] = {}
        for word, count in words.items():
            for pair in pairwise(word):
                counts[pair] = counts.get(pair, 0) + count
        if not counts:
            break
        best = max(counts, key=lambda pair: (counts[pair], pair))
        merges.append(" ".join(best))
        if "".join(best) not in tokens:
            tokens.append("".join(best))
        merged: dict[tuple[str, ...], int] = {}
        for word, count in words.items():
            joined = _join(word, best)
            merged[joined] = merged.get(joined, 0) + count
        words = merged
    return tokens, merges


def _join(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    at = 0
    while at < len(word):
        width = 2 if word[at : at + 2] == pair else 1
        out.append("".join(word[at : at + width]))
        at += width
    return tuple(out)
