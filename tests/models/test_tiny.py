"""The shipped tiny model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from support.models.losses import reference_losses
from trigraph.models.gguf_file import GGUFFile
from trigraph.models.model import open_model
from trigraph.models.reference import Reference
from trigraph.models.tokenizer import tokenizer_json

TEXT = (
    "She had been a friend and companion such as few possessed: intelligent, well-informed, useful, gentle, knowing "
    "all the ways of the family, interested in all its concerns, and peculiarly interested in herself."
)


def test_shipped_model(tiny_gguf: Path) -> None:
    assert tiny_gguf.stat().st_size < 8 << 20
    config = open_model(tiny_gguf).config
    assert config.architecture == "qwen35moe"
    assert (config.trunk_layers, config.mtp_layers, config.tied) == (4, 1, True)
    assert config.recurrent == (True, True, True, False)


def test_shipped_model_has_learnt_english(tiny_gguf: Path) -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json(GGUFFile.open(tiny_gguf).metadata))
    reference = Reference(open_model(tiny_gguf))
    ids = np.array(tokenizer.encode(TEXT).ids, np.int64)
    trunk, draft = reference_losses(reference, ids)
    assert trunk < 4.5  # a uniform guess has 7.6
    assert draft < 4.5
    backwards, _ = reference_losses(reference, ids[::-1].copy())
    assert backwards > trunk + 2
