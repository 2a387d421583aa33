"""The NumPy vision tower, and images in the NumPy text model, against transformers and against themselves in parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from support.oracles.transformers_vision import Oracle, load_oracle, load_tower, tower_embeddings
from support.pictures.patch_prompts import PROMPTS, make_prompt, random_patches, rows_of, with_rows
from trigraph.models import Model, open_model
from trigraph.models.reference import Reference, State
from trigraph.models.rope_positions import ImageSpan, axes_of_pairs, positions_between, rope_sections
from trigraph.models.synth import write_synthetic_mmproj
from trigraph.models.vision.reference import TowerReference
from trigraph.models.vision.tower import Tower, open_tower
from trigraph.runtime.device.heap import trim_heap

# Of embeddings up to 5, and of logits up to 10; transformers computes some of it in float32.
EMBEDDINGS, LOGITS, HEAD_LOGITS = 2e-5, 5e-5, 2e-4
ARCHITECTURES = {"qwen35": "tiny-dense", "qwen35moe": "tiny-moe"}
Synthetic = Callable[[str, str], Path]


def write_tower(folder: Path, geometry: str, **options: Any) -> Tower:
    write_synthetic_mmproj(geometry, folder / "mmproj-a.gguf", **options)
    return open_tower(folder / "mmproj-a.gguf")


def difference(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max())


@pytest.fixture(scope="module", params=ARCHITECTURES)
def models(
    request: pytest.FixtureRequest, synthetic: Synthetic, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Model, Tower, Oracle]:
    """Text model, tower, and both in transformers."""
    geometry = ARCHITECTURES[request.param]
    model = open_model(synthetic(geometry, "F32"))
    tower = write_tower(tmp_path_factory.mktemp("tower"), f"mmproj-{geometry}", quant="F32")
    return model, tower, load_oracle(model, tower)


@pytest.mark.slow
@pytest.mark.parametrize("prompt", PROMPTS)
def test_transformers(models: tuple[Model, Tower, Oracle], prompt: str) -> None:
    """Heights and widths in tokens; (0, 0) leaves out the text between two images but for the tokens around them."""
    model, tower, oracle = models
    tokens, spans, images = make_prompt(model, PROMPTS[prompt])
    grids = [(2 * span.height, 2 * span.width) for span in spans]
    for span in spans:
        tokens[span.start : span.end] = [oracle.image_token] * span.tokens
    expected = oracle(tokens, images, grids)

    embeddings = [TowerReference(tower)(image, *grid) for image, grid in zip(images, grids, strict=True)]
    for ours, theirs in zip(embeddings, expected.embeddings, strict=True):
        assert difference(ours, theirs) < EMBEDDINGS
    ids, at = with_rows(model, tokens, spans), positions_between(0, len(tokens), spans)
    np.testing.assert_array_equal(at, expected.positions)
    reference, rows = Reference(model), rows_of(embeddings, model)
    hidden, logits = reference.trunk(ids, image_rows=rows, positions=at)
    assert difference(logits, expected.logits) < LOGITS
    np.testing.assert_array_equal(logits.argmax(-1), expected.logits.argmax(-1))
    before = np.concatenate([np.zeros_like(hidden[:1]), hidden[:-1]])
    _, head_logits = reference.mtp(ids, before, image_rows=rows, positions=at)
    assert difference(head_logits, expected.head_logits) < HEAD_LOGITS


@pytest.mark.slow
def test_transformers_on_real_shapes(tmp_path: Path) -> None:
    """Heads of 72, a table of 48 x 48, and a feed-forward width that is no multiple of 32."""
    tower = write_tower(tmp_path, "mmproj-qwen3.6-35b-a3b", layers=1)
    images = [(random_patches(*size), (2 * size[0], 2 * size[1])) for size in ((1, 1), (13, 17), (2, 150))]
    oracle = load_tower(tower)
    expected = [tower_embeddings(oracle, *image) for image in images]
    del oracle
    trim_heap()  # its memory, for the reference's
    reference = TowerReference(tower)
    for (patches, grid), theirs in zip(images, expected, strict=True):
        assert difference(reference(patches, *grid), theirs) < EMBEDDINGS, grid


@pytest.mark.slow
@pytest.mark.parametrize("size", [(32, 32), (7, 146)])
def test_transformers_on_large_images(tmp_path: Path, size: tuple[int, int]) -> None:
    tower = write_tower(tmp_path, "mmproj-tiny-dense", quant="F32")
    patches, grid = random_patches(*size), (2 * size[0], 2 * size[1])
    assert (
        difference(TowerReference(tower)(patches, *grid), tower_embeddings(load_tower(tower), patches, grid))
        < EMBEDDINGS
    )


@pytest.mark.parametrize("quant", ["F16", "BF16", "Q8_0"])
def test_transformers_on_published_types(tmp_path: Path, quant: str) -> None:
    tower = write_tower(tmp_path, "mmproj-tiny-dense", quant=quant)
    patches = random_patches(5, 4)
    assert (
        difference(TowerReference(tower)(patches, 10, 8), tower_embeddings(load_tower(tower), patches, (10, 8)))
        < EMBEDDINGS
    )


@pytest.mark.parametrize("cuts", [[3], [6, 9], [8, 19], [15, 16, 17]])
def test_a_prompt_cut_anywhere(models: tuple[Model, Tower, Oracle], cuts: list[int]) -> None:
    """Also inside an image; the text after it goes on at the position that the image leaves."""
    model, tower, _ = models
    tokens, spans, images = make_prompt(model, [(3, 3)])
    rows = rows_of([TowerReference(tower)(images[0], 6, 6)], model)
    ids, at = with_rows(model, tokens, spans), positions_between(0, len(tokens), spans)
    whole = Reference(model).trunk(ids, image_rows=rows, positions=at)[1]
    state, found = State(), []
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        given = at[:, start:end] if start < spans[-1].end else None
        found.append(Reference(model).trunk(ids[start:end], state, image_rows=rows, positions=given)[1])
    assert difference(np.concatenate(found), whole) < 1e-10
    assert state.next_position == at.max() + 1 < len(ids)


def test_equal_axes_are_text(synthetic: Synthetic) -> None:
    """To the bit: three equal axes compute what one position does."""
    model = open_model(synthetic("tiny-dense", "F32"))
    tokens = np.random.default_rng(1).integers(0, 512, 20)
    plain, axes = Reference(model).trunk(tokens), Reference(model).trunk(tokens, positions=positions_between(0, 20))
    for ours, theirs in zip(plain, axes, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_axes_of_pairs() -> None:
    """Of 32 pairs 11 turn by time, 11 by row and 10 by column, in turn; what no section reaches turns by time."""
    axes = axes_of_pairs(32, (11, 11, 10))
    assert np.bincount(axes).tolist() == [11, 11, 10]
    assert axes[:6].tolist() == [0, 1, 2, 0, 1, 2] and axes[-2:].tolist() == [0, 1]
    assert axes_of_pairs(8, (3, 3, 2)).tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert axes_of_pairs(8, (8, 0, 0)).tolist() == [0] * 8


def test_sections_of_files(synthetic: Synthetic) -> None:
    for geometry, sections in {"tiny-dense": (3, 3, 2), "tiny-next": (11, 11, 10)}.items():
        model = open_model(synthetic(geometry, "F32"))
        assert rope_sections(model.file, model.config) == sections


def test_spans() -> None:
    span = ImageSpan(5, 3, 4)
    assert (span.tokens, span.end, span.shift) == (12, 17, -8)
    assert ImageSpan(0, 1, 9).shift == 0
    assert positions_between(0, 20, [span])[:, [4, 5, 10, 16, 17]].T.tolist() == [
        [4, 4, 4], [5, 5, 5], [5, 6, 6], [5, 7, 8], [9, 9, 9],
    ]  # fmt: skip
