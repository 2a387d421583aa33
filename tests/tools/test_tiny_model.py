"""The recipe of the shipped tiny model: preparation, training, distillation and conversion, a few steps each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.models.losses import reference_losses
from trigraph.models.model import open_model
from trigraph.models.reference import Reference


def _write_texts(folder: Path) -> None:
    """Books of invented words, enough of them to fill the vocabulary."""
    from tiny_model.corpus import BIBLE, NOVELS

    rng = np.random.default_rng(5)
    syllables = [c + v for c in "bcdfghjklmnprstvwz" for v in "aeiou"]
    words = ["".join(rng.choice(syllables, rng.integers(1, 4))) for _ in range(3000)]
    folder.mkdir()
    for name in (*NOVELS, BIBLE):
        paragraphs = (" ".join(rng.choice(words, 100)) + "." for _ in range(60))
        text = "[A Title]\n" + "\r\n\r\n".join(paragraphs) + "\r\nEnd of the Project Gutenberg book.\r\nA licence."
        (folder / f"{name}.txt").write_text(text, encoding="latin-1")


@pytest.mark.slow
def test_recipe(tmp_path: Path) -> None:
    """Prepare, two steps of training, conversion: the forward pass on the file gives the training code's losses."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    from tiny_model.convert import convert
    from tiny_model.corpus import load_held_out, prepare, read_book
    from tiny_model.mtp_head import losses
    from tiny_model.train import Schedule, load, make_config, save, train

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
    np.testing.assert_allclose(reference_losses(Reference(open_model(tmp_path / "run.gguf")), ids), expected, atol=1e-4)


@pytest.mark.slow
def test_distillation(tmp_path: Path) -> None:
    """A few steps bring a fresh head nearer to its trunk, which does not change."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    from safetensors.numpy import load_file

    from tiny_model.distill import Schedule, distill, gather, losses
    from tiny_model.train import load, make_config, make_model, save

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
