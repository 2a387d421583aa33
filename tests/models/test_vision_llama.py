"""Images in the text model against llama.cpp, which is given our embeddings and positions: logits and drafts.

Its own tower is no oracle: it rounds pixels to float16 and takes GELU from a float16 table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from support.models.calm import calmed
from support.oracles.llama_steps import LlamaSteps
from support.pictures.patch_prompts import PROMPTS, make_prompt, rows_of, with_rows
from trigraph.models import Model, open_model
from trigraph.models.reference import Reference
from trigraph.models.rope_positions import positions_between
from trigraph.models.synth import write_synthetic_mmproj
from trigraph.models.vision.reference import TowerReference
from trigraph.models.vision.tower import open_tower

TOLERANCE = 1e-5


class Case(NamedTuple):
    """A prompt, and what the reference computes of it."""

    ids: npt.NDArray[np.int64]
    rows: npt.NDArray[np.float64]
    at: npt.NDArray[np.int64]
    hidden: npt.NDArray[np.float64]
    logits: npt.NDArray[np.float64]


@pytest.fixture(scope="module", params=["tiny-dense", "tiny-moe"])
def both(
    request: pytest.FixtureRequest, synthetic: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Callable[[str], Case], Model, LlamaSteps]]:
    """Makes cases; the text model; and it in llama.cpp."""
    folder = tmp_path_factory.mktemp("calm")
    path = calmed(synthetic(request.param, "F32"), folder / "model.gguf")
    model = open_model(path)
    write_synthetic_mmproj(f"mmproj-{request.param}", folder / "mmproj-a.gguf", quant="F32")
    tower, reference = TowerReference(open_tower(folder / "mmproj-a.gguf")), Reference(model)

    def case(name: str) -> Case:
        tokens, spans, images = make_prompt(model, PROMPTS[name])
        grids = [(2 * span.height, 2 * span.width) for span in spans]
        rows = rows_of([tower(image, *grid) for image, grid in zip(images, grids, strict=True)], model)
        rows = rows.astype(np.float32).astype(np.float64)  # as llama.cpp takes them
        ids, at = with_rows(model, tokens, spans), positions_between(0, len(tokens), spans)
        return Case(ids, rows, at, *reference.trunk(ids, image_rows=rows, positions=at))

    llama = LlamaSteps(path, model.config.vocab)
    yield case, model, llama
    llama.close()


@pytest.mark.parametrize("name", PROMPTS)
def test_logits(both: tuple[Callable[[str], Case], Model, LlamaSteps], name: str) -> None:
    make, _, llama = both
    case = make(name)
    found = llama.trunk(case.ids, case.rows, case.at)
    assert np.abs(found - case.logits).max() < TOLERANCE


@pytest.mark.parametrize("name", PROMPTS)
def test_drafts(both: tuple[Callable[[str], Case], Model, LlamaSteps], name: str) -> None:
    """Entry p of the head: the row of token p, image or text, its own position, and the hidden row of p - 1."""
    make, model, llama = both
    case = make(name)
    before = np.concatenate([np.zeros_like(case.hidden[:1]), case.hidden[:-1]])
    before = before.astype(np.float32).astype(np.float64)
    _, expected = Reference(model).mtp(case.ids, before, image_rows=case.rows, positions=case.at)
    found = llama.head(case.ids, before, case.rows, case.at)
    assert np.abs(found - expected).max() < TOLERANCE
    np.testing.assert_array_equal(found.argmax(-1), expected.argmax(-1))
