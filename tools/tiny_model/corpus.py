"""The texts that the tiny model learns: cleaned, tokenised, and a part of each book held out."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from trigraph.models.tokenizer import PRE_TOKENIZERS

NOVELS = (
    "austen-emma",
    "austen-sense",
    "austen-persuasion",
    "edgeworth-parents",
    "carroll-alice",
    "chesterton-brown",
    "chesterton-ball",
    "chesterton-thursday",
)
BIBLE = "bible-kjv"
VOCAB = 2048
END_OF_TEXT = 0
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

_TITLE = re.compile(r"^\[.*?\]\n")
_LICENCE = re.compile(
    r"(?im)^.*(?:end of (?:the )?project gutenberg|\*\*\*\s*end|start: full license|project gutenberg).*$"
)
_VERSE_NUMBER = re.compile(r"\b\d+:\d+ ")

Ids = NDArray[np.int64]


def prepare(texts: Path, folder: Path) -> None:
    """From the package's `gutenberg` folder: write tokenizer.json, train_ids.npy and held_out_ids.npz to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    books = {name: read_book(texts, name) for name in (*NOVELS, BIBLE)}
    tokenizer = train_tokenizer(list(books.values()))
    tokenizer.save(str(folder / "tokenizer.json"))
    kept: list[int] = []
    held_out = {}
    for name, text in books.items():
        ids = tokenizer.encode(text).ids
        cut = max(2000, len(ids) // 50)  # the last 2 %
        held_out[name] = np.array(ids[-cut:], np.uint16)
        kept += [END_OF_TEXT, *ids[:-cut]]
        print(f"{name}: {len(text)} characters, {len(ids)} tokens")
    np.save(folder / "train_ids.npy", np.array(kept, np.uint16))
    np.savez(folder / "held_out_ids.npz", **held_out)  # type: ignore[arg-type]


def read_book(texts: Path, name: str) -> str:
    """One line a paragraph; no title line, no licence text, no verse numbers."""
    text = (texts / f"{name}.txt").read_text(encoding="latin-1").replace("\r\n", "\n").replace("\xa0", " ")
    text = _LICENCE.split(_TITLE.sub("", text))[0]
    if name == BIBLE:
        text = _VERSE_NUMBER.sub("", text)
    text = text.replace("--", " -- ").replace("_", "").replace("`", "'")
    paragraphs = (re.sub(r"\s+", " ", paragraph).strip() for paragraph in re.split(r"\n\s*\n", text))
    return "\n".join(paragraph for paragraph in paragraphs if paragraph)


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE with the qwen35 pre-tokenizer; the special tokens get the lowest ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZERS["qwen35"]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_train_ids(folder: Path) -> Ids:
    ids: Ids = np.load(folder / "train_ids.npy").astype(np.int64)
    return ids


def load_held_out(folder: Path, length: int, count: int = 16) -> dict[str, Ids]:
    """Up to `count` stretches [count, length] of held-out text, for the novels and for the Bible."""
    stretches: dict[str, list[Ids]] = {"novels": [], "bible": []}
    with np.load(folder / "held_out_ids.npz") as books:
        for name, ids in books.items():
            starts = range(0, len(ids) - length - 1, 1024)
            stretches["bible" if name == BIBLE else "novels"] += [ids[i : i + length].astype(np.int64) for i in starts]
    return {name: np.stack(found[:count]) for name, found in stretches.items()}
