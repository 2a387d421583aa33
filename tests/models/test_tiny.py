"""The shipped tiny model, and the recipe that makes one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tokenizers import Tokenizer

from trigraph.models.gguf_file import GGUFFile
from trigraph.models.model import open_model
from trigraph.models.reference import Reference
from trigraph.models.tokenizer import tokenizer_json

TEXT = (
    "She had been a friend and companion such as few possessed: intelligent, well-informed, useful, gentle, knowing "
    "all the ways of the family, interested in all its concerns, and peculiarly interested in herself."
)


def _loss(logits: npt.NDArray[Any], targets: npt.NDArray[np.int64]) -> float:
    """Mean cross-entropy of logits [T, vocab] against targets [T]."""
    shifted = logits - logits.max(-1, keepdims=True)
    chosen = shifted[np.arange(len(targets)), targets]
    return float(np.mean(np.log(np.exp(shifted).sum(-1)) - chosen))


def _losses(reference: Reference, ids: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Of the trunk (token t+1 from tokens 0..t) and of the MTP head (token t+2 from token t+1 and hidden t)."""
    hidden, logits = reference.trunk(ids[:-2])
    _, draft_logits = reference.mtp(ids[1:-1], hidden)
    return _loss(logits, ids[1:-1]), _loss(draft_logits, ids[2:])


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
    trunk, draft = _losses(reference, ids)
    assert trunk < 4.5  # a uniform guess has 7.6
    assert draft < 4.5
    backwards, _ = _losses(reference, ids[::-1].copy())
    assert backwards > trunk + 2


def _write_texts(folder: Path) -> None:
    """Books of invented words, enough of them to fill the vocabulary."""
    from trigraph.models.tiny.corpus import BIBLE, NOVELS

    rng = np.random.default_rng(5)
    syllables = [c + v for c in "bcdfghjklmnprstvwz" for v in "aeiou"]
    words = ["".join(rng.choice(syllables, rng.integers(1, 4))) for _ in range(3000)]
    folder.mkdir()
    for name in (*NOVELS, BIBLE):
        paragraphs = (" ".join(rng.choice(words, 100)) + "." for _ in range(60))
        text = "[A Title]\n" + "\r\n\r\n".join(paragraphs) + "\r\nEnd of the Project Gutenberg book.\r\nA licence."
        (folder / f"{name}.txt").write_text(text, encoding="latin-1")


def test_recipe(tmp_path: Path) -> None:
    """Prepare, two steps of training, conversion: the forward pass on the file gives the training code's losses."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    from trigraph.models.tiny.convert import convert
    from trigraph.models.tiny.corpus import load_held_out, prepare, read_book
    from trigraph.models.tiny.mtp_head import losses
    from trigraph.models.tiny.train import Schedule, load, make_config, save, train

    _write_texts(tmp_path / "texts")
    text = read_book(tmp_path / "texts", "carroll-alice")
    assert "Title" not in text
    assert "icence" not in text
    assert text.count("\n") == 59

    torch.set_num_threads(1)
    torch.manual_seed(1)
    prepare(tmp_path / "texts", tmp_path / "run")
    train(tmp_path / "run", Schedule(steps=2, batch=1, tokens=64))
    trunk, head = load(tmp_path / "run")
    ids = load_held_out(tmp_path / "run", 66)["novels"][0]
    with torch.no_grad():
        for parameter in (*trunk.parameters(), *head.parameters()):  # large enough for a wrong layout to show
            parameter.add_(0.1 * torch.randn_like(parameter))
        expected = [term.item() for term in losses(trunk, head, torch.from_numpy(ids[None]), 1)]
    save(tmp_path / "run", make_config(), trunk, head)
    convert(tmp_path / "run", tmp_path / "run.gguf", "F32")
    np.testing.assert_allclose(_losses(Reference(open_model(tmp_path / "run.gguf")), ids), expected, atol=1e-4)


def test_distillation(tmp_path: Path) -> None:
    """A few steps bring a fresh head nearer to its trunk, which does not change."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    from safetensors.numpy import load_file

    from trigraph.models.tiny.distill import Schedule, distill, gather, losses
    from trigraph.models.tiny.train import load, make_config, make_model, save

    torch.set_num_threads(1)
    torch.manual_seed(1)
    trunk, head = make_model(make_config())
    with torch.no_grad():
        for parameter in (*trunk.parameters(), *head.parameters()):
            parameter.add_(0.05 * torch.randn_like(parameter))
    save(tmp_path, make_config(), trunk, head)
    ids = np.random.default_rng(2).integers(0, 2048, 2000)
    np.save(tmp_path / "train_ids.npy", ids.astype(np.uint16))
    schedule = Schedule(steps=12, warm_up=1, batch=2, tokens=48, sampled=3, copied=2)

    def disagreement() -> float:
        trunk, head = load(tmp_path)
        trunk.eval()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            known = gather(trunk, ids, schedule)
            assert known.ids.shape == (5, 48)
            again = trunk.model(input_ids=known.ids).last_hidden_state
            torch.testing.assert_close(known.hidden, again, atol=1e-3, rtol=1e-3)
            return sum(term.item() for term in losses(trunk, head, known.ids, known.hidden, 2))

    before, weights = disagreement(), load_file(tmp_path / "model.safetensors")
    distill(tmp_path, schedule)
    assert disagreement() < 0.95 * before
    for name, values in load_file(tmp_path / "model.safetensors").items():
        assert name.startswith("mtp.") or np.array_equal(values, weights[name]), name
