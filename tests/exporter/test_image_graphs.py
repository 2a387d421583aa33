"""Packages with a vision tower: what is in them, and their graphs against transformers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest

from support.models.calm import calmed
from support.models.seeing import SeeingPackages, Seen, picture, prompt_of
from support.oracles.transformers_vision import Oracle, load_oracle, load_tower, tower_embeddings
from trigraph.custom_ops import library_path
from trigraph.exporter import ExportOptions, describe, export, read_manifest
from trigraph.models import open_model
from trigraph.models.errors import TrigraphError
from trigraph.models.synth import write_synthetic, write_synthetic_mmproj
from trigraph.models.vision.tower import Tower, open_tower
from trigraph.runtime import Engine, load
from trigraph.runtime.device.heap import trim_heap
from trigraph.runtime.engine.package_cache import cached_package
from trigraph.runtime.images.image import ResizedImage

# Of embeddings up to 5, of logits up to 10, and of those of the head, of which transformers has some in float32.
EMBEDDINGS, LOGITS, HEAD_LOGITS = 2e-5, 5e-5, 2e-4
AMPLIFIED = 5e-4
"""Of logits from our own embeddings: a random model makes 100 times as much of their last bits, in float64 too."""
GEOMETRIES = ("tiny-dense", "tiny-moe")
SHAPES = ((1, 1), (13, 17), (2, 150))
"""Of images, in tokens."""
EXACT: dict[str, Any] = {"kv_type": "f32", "activations": "float32"}


def difference(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max())


def opened(folder: Path, graph: str, library: Path | None = None) -> ort.InferenceSession:
    """A graph of a package that refers to its weights, in a plain session."""
    options = ort.SessionOptions()
    if library is not None:
        options.register_custom_ops_library(str(library))
    weights = str(read_manifest(folder).weights_folder)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", weights)
    return ort.InferenceSession((folder / f"{graph}.onnx").read_bytes(), options)


PROMPTS: list[tuple[Any, ...]] = [
    (9,), (4, (1, 1), 3), (3, (3, 5), 4), (5, (1, 67), 3), (5, (61, 1), 3), (2, (7, 2), 3, (2, 9), 4),
    (2, (3, 3), 2, (2, 4), 3), (1, (1, 2), 1, (11, 13), 2, (5, 1), 6),
]  # fmt: skip


@pytest.fixture(scope="module", params=GEOMETRIES)
def compared(request: pytest.FixtureRequest, seeing: SeeingPackages, synthetic: Any) -> Iterator[tuple[Engine, Oracle]]:
    """A package in the engine, and what it was made of in transformers; of one model after the other."""
    oracle = load_oracle(open_model(synthetic(request.param, "F32")), open_tower(seeing.tower(request.param)))
    with load(seeing(request.param, "F32", **EXACT), context=256, threads=1) as engine:
        yield engine, oracle


@pytest.mark.slow
@pytest.mark.parametrize("parts", PROMPTS)
def test_transformers(compared: tuple[Engine, Oracle], parts: tuple[Any, ...]) -> None:
    """Every row's logits, drafts of the head, and the tower's rows; 0 to 3 images, odd sizes and extreme ratios."""
    engine, oracle = compared
    vision, steps = engine.model.vision, engine.steps
    assert vision is not None
    prompt = prompt_of(*parts, pad=oracle.image_token)
    patches = [image.patches(vision.config) for image in prompt.pixels]
    expected = oracle([*prompt.ids], patches, [image.grid for image in prompt.pixels])
    for image, pixels, theirs in zip(vision.placed(prompt), prompt.pixels, expected.embeddings, strict=True):
        assert difference(vision.rows(image, pixels), theirs) < EMBEDDINGS
    seen, logits = Seen(engine, prompt, [rows.astype(np.float32) for rows in expected.embeddings]), []
    sequence = seen.start(engine)
    np.testing.assert_array_equal(sequence.positions(0, len(seen)), expected.positions)
    for place, token in enumerate(seen.tokens):
        if place and token >= 0:
            other = steps.fork(sequence)
            drafted = steps.draft([other], [token]).logits[0]
            assert difference(drafted, expected.head_logits[place][: len(drafted)]) < HEAD_LOGITS
            steps.release(other)
        logits.append(seen.prefill(engine, sequence, place + 1).logits[0].copy())
    assert difference(np.stack(logits), expected.logits) < LOGITS
    steps.release(sequence)
    whole = Seen(engine, prompt)
    sequence = whole.start(engine)
    last = whole.prefill(engine, sequence, len(whole)).logits
    assert difference(last, expected.logits[-1:]) < AMPLIFIED
    steps.release(sequence)


REAL: dict[str, dict[str, Any]] = {
    "qwen3.5-0.8b": dict(layers=4, vocab=600), "qwen3.6-35b-a3b": dict(layers=4, vocab=600, experts=8)
}  # fmt: skip
LARGE = pytest.mark.skipif(
    "TRIGRAPH_TEST_MEMORY" in os.environ, reason="takes 7 GB, more than a process of the suite may: run the file itself"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("geometry", "cut"),
    [*((name, {}) for name in GEOMETRIES), *(pytest.param(*one, marks=LARGE) for one in REAL.items())],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_transformers_from_pixels_to_logits(tmp_path: Path, geometry: str, cut: dict[str, Any]) -> None:
    """With our own embeddings, on a model that amplifies their last bits little; images of 256 and 1024 tokens too."""
    write_synthetic(geometry, tmp_path / "a.gguf", quant="F32", **cut)
    write_synthetic_mmproj(f"mmproj-{geometry}", tmp_path / "b.gguf", quant="F32", layers=2)
    source = calmed(tmp_path / "a.gguf", tmp_path / "model.gguf")
    mmproj = calmed(tmp_path / "b.gguf", tmp_path / "mmproj-a.gguf")
    export(source, tmp_path / "package", ExportOptions(mmproj=mmproj, **EXACT))
    tower = open_tower(mmproj)
    oracle = load_oracle(open_model(source), tower)
    with load(tmp_path / "package", context=2048, threads=1) as engine:
        for parts in (*PROMPTS, (5, (16, 16), 9), (3, (32, 32), 2)):
            prompt = prompt_of(*parts, pad=oracle.image_token)
            patches = [image.patches(tower.config) for image in prompt.pixels]
            expected = oracle([*prompt.ids], patches, [image.grid for image in prompt.pixels])
            seen = Seen(engine, prompt)
            sequence = seen.start(engine)
            for length in (*(span.end for span in prompt.images), len(seen)):
                found = seen.prefill(engine, sequence, length).logits
                assert difference(found, expected.logits[length - 1 : length]) < LOGITS, (parts, length)
            engine.steps.release(sequence)


@pytest.mark.slow
@pytest.mark.parametrize("quant", ["F32", "F16", "Q8_0"])
def test_real_shapes(tmp_path: Path, quant: str, operator_library: Path) -> None:
    """Heads of 72, a table of 48 x 48, a feed-forward width that is no multiple of 32, in types that are published."""
    write_synthetic("qwen3.6-35b-a3b", tmp_path / "model.gguf", layers=4, vocab=600, experts=8)
    write_synthetic_mmproj("mmproj-qwen3.6-35b-a3b", tmp_path / "mmproj-a.gguf", layers=2, quant=quant)
    export(tmp_path / "model.gguf", tmp_path / "package")
    pictures = [picture(size) for size in SHAPES]
    expected = of_transformers(open_tower(tmp_path / "mmproj-a.gguf"), pictures)
    with load(tmp_path / "package", context=512) as engine:
        vision = engine.model.vision
        assert vision is not None
        for pixels, theirs in zip(pictures, expected, strict=True):
            rows = vision.rows(vision.placed(prompt_of(pixels))[0], pixels)
            assert difference(rows, theirs) < EMBEDDINGS


def of_transformers(tower: Tower, pictures: list[ResizedImage]) -> list[npt.NDArray[np.float32]]:
    """Rows of images by its tower, whose memory is free afterwards."""
    oracle = load_tower(tower)
    rows = [tower_embeddings(oracle, pixels.patches(tower.config), pixels.grid) for pixels in pictures]
    del oracle
    trim_heap()
    return rows


def test_portable_packages_are_for_text(tmp_path: Path, operator_library: Path) -> None:
    """A tower that lies beside the model is left out, with a notice; one that is asked for is refused."""
    model, tower = tmp_path / "model.gguf", tmp_path / "mmproj-a.gguf"
    write_synthetic("tiny-dense", model, quant="F32")
    write_synthetic_mmproj("mmproj-tiny-dense", tower)
    manifest = export(model, tmp_path / "package", ExportOptions(portable=True))
    assert manifest.images is None and "vision" not in manifest.graphs
    assert manifest.notices == ("images cannot be read: portable packages are for text alone",)
    for options, text in (
        (ExportOptions(portable=True, mmproj=tower), "mmproj names a vision tower: portable packages"),
        (ExportOptions(portable=True, kv_type="q8_0"), "kv_type is q8_0: portable packages"),
    ):
        with pytest.raises(TrigraphError, match=text):
            export(model, tmp_path / "package", options)


def test_manifest(seeing: SeeingPackages, synthetic: Any, tmp_path: Path) -> None:
    folder = seeing("tiny-dense", "F32")
    manifest = read_manifest(folder)
    assert manifest.graphs == ("prefill", "verify", "draft", "vision") and manifest.features == ("images",)
    assert manifest.images is not None
    assert manifest.images.tower == open_tower(seeing.tower("tiny-dense")).config
    described = describe(folder)
    assert described.vision is not None and described.vision.parameters > 0 and described.mtp
    # Without a tower nothing changes: features, keys, inputs.
    export(synthetic("tiny-dense", "F32"), tmp_path / "plain", ExportOptions(weights="reference"))
    content = json.loads((tmp_path / "plain" / "manifest.json").read_text())
    assert content["contract_version"] == 9 and content["features"] == [] and "images" not in content
    session = opened(tmp_path / "plain", "prefill", library_path("cpu"))
    assert not {value.name for value in session.get_inputs()} & {"positions", "image_rows", "image_places"}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"features": []}, "key 'features' is [], expected ['images']"),
        ({"features": ["images", "streams"]}, "key 'features' is ['images', 'streams'], expected ['images']"),
        ({"activations": "int4"}, "key 'images.activations' is 'int4', expected one of float32, int8"),
        ({"images": None}, "key 'features' is ['images'], expected []"),
        ({"graphs": ["prefill", "verify", "draft"]}, "key 'graphs' is"),
        ({"width": 0}, "key 'images.tower.width' is 0, expected 1 to"),
        ({"hidden": 5}, "key 'images.tower.hidden' is 5, expected 256"),
        ({"std": [0.5, 0.5, 0.0]}, "key 'images.tower.std' is"),
        ({"max_pixels": 0}, "key 'images.tower.max_pixels' is 0"),
        ({"weights": "else.gguf"}, "key 'images.weights' is 'else.gguf', expected one of"),
    ],
)
def test_damaged_manifests(seeing: SeeingPackages, tmp_path: Path, change: dict[str, Any], error: str) -> None:
    folder = seeing("tiny-dense", "F32")
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    content = json.loads((folder / "manifest.json").read_text())
    for name, value in change.items():
        part = content["images"]["tower"] if name in content["images"]["tower"] else content
        (content["images"] if name in ("weights", "activations") else part)[name] = value
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(TrigraphError, match=error.replace("[", r"\[")):
        read_manifest(tmp_path)


def test_a_tower_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operator_library: Path) -> None:
    """It is found; one that appears later too. One of another model is named, and the package is of text alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "models").mkdir()
    model = tmp_path / "models" / "model.gguf"
    write_synthetic("tiny-dense", model, quant="F32")
    assert read_manifest(cached_package(model, ExportOptions()).folder).images is None
    write_synthetic_mmproj("mmproj-qwen3.5-0.8b", model.with_name("mmproj-a.gguf"), layers=1)
    manifest = read_manifest(cached_package(model, ExportOptions()).folder)
    assert manifest.images is None
    assert "images cannot be read: " in manifest.notices[0] and "projection_dim' is 1024" in manifest.notices[0]
    write_synthetic_mmproj("mmproj-tiny-dense", model.with_name("mmproj-b.gguf"))
    found = read_manifest(cached_package(model, ExportOptions()).folder)
    assert found.images is not None and found.images.weights.endswith("mmproj-b.gguf")
    linked = export(model, tmp_path / "linked")
    assert linked.images is not None and (tmp_path / "linked" / "mmproj-b.gguf").exists()
    with pytest.raises(TrigraphError, match="projection_dim' is 1024, but the model's embedding_length is 256"):
        export(model, tmp_path / "other", ExportOptions(mmproj=model.with_name("mmproj-a.gguf")))
