"""Whole models on a GPU or a software one: near the CPU's logits, and one text in any way."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from support.devices.webgpu import plugin
from support.models.packages import Packages
from support.models.seeing import SeeingPackages, prompt_of
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, load
from trigraph.runtime.doctor.near import TOLERANCE, nearness
from trigraph.runtime.execution.steps import Steps

PROMPT = [(7 * i * i + 3) % 2000 for i in range(40)]


@pytest.fixture(scope="module")
def folder(packages: Packages) -> Path:
    """The trained model, which has experts."""
    plugin()
    return packages("trained", "Q8_0", activations="float32")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    with load(folder, device="webgpu", context=256, sequences=3) as engine:
        yield engine


@pytest.fixture(scope="module")
def exact(folder: Path) -> Iterator[Engine]:
    with load(folder, context=256) as engine:
        yield engine


def _ids(engine: Engine, prompt: list[int] = PROMPT, **options: float) -> list[int]:
    request = engine.generate(prompt, max_tokens=16, ignore_eos=True, **options)  # type: ignore[arg-type]
    request.run()
    return request.ids


def _logits(steps: Steps) -> np.ndarray:
    sequence, text = steps.new_sequence(), [token % 500 for token in PROMPT[:20]]
    first = steps.prefill([sequence], [text]).logits.copy()
    return np.concatenate([first, steps.verify([sequence], [text[:3]]).logits])


@pytest.mark.slow
@pytest.mark.parametrize(("geometry", "kv_type"), [("trained", "f16"), ("tiny-dense", "q8_0")])
def test_nearness(geometry: str, kv_type: str, packages: Packages) -> None:
    """Neither drafts nor cuts nor companions change a bit, with attention on the CPU (q8_0) or where float16 is."""
    plugin()
    found = nearness(packages(geometry, "Q8_0", activations="float32", kv_type=kv_type), "webgpu")
    assert found.distance < TOLERANCE
    assert found.changed_by == ()


def test_ids_of_the_cpu(engine: Engine, exact: Engine) -> None:
    assert _ids(engine, temperature=0) == _ids(exact, temperature=0)


@pytest.mark.parametrize(("geometry", "quant"), [("tiny-dense", "Q4_K_M"), ("tiny-next", "Q8_0")])
def test_other_models(geometry: str, quant: str, packages: Packages) -> None:
    """Logits near those of the CPU, after a prompt and for drafts after it."""
    plugin()
    folder = packages(geometry, quant, activations="float32")
    with load(folder, device="webgpu", context=64) as engine, load(folder, context=64) as exact:
        found, known = (_logits(each.steps) for each in (engine, exact))
    assert np.abs(found - known).max() < TOLERANCE * np.abs(known).max()


def test_keys_and_values_on_the_gpu(engine: Engine) -> None:
    """Attention is the plugin's, in the models above, too; skipped where the CPU computes it."""
    plugin(TensorProto.FLOAT16)
    assert not any("the CPU computes attention" in notice for notice in engine.model.notices)


@pytest.mark.slow
def test_drafts_and_batches(folder: Path, engine: Engine) -> None:
    """Neither changes a text, greedy or sampled."""
    texts: list[dict[str, float]] = [{"temperature": 0}, {"temperature": 1, "seed": 5}, {"temperature": 1, "seed": 6}]
    with load(folder, device="webgpu", context=256, speculation=False) as plain:
        known = [_ids(plain, PROMPT[i:], **options) for i, options in enumerate(texts)]
    requests = [
        engine.generate(PROMPT[i:], max_tokens=16, ignore_eos=True, **options)  # type: ignore[arg-type]
        for i, options in enumerate(texts)
    ]
    for request in requests:
        request.run()
    assert [request.ids for request in requests] == known


@pytest.mark.slow
def test_session_files(engine: Engine, exact: Engine, tmp_path: Path) -> None:
    """A text goes on from a file with the same bits, on this arithmetic alone."""
    whole, path = _ids(engine, temperature=0), tmp_path / "session"
    engine.generate(PROMPT[:30], cache=path, max_tokens=1).run()
    request = engine.generate(PROMPT, cache=path, max_tokens=16, ignore_eos=True, temperature=0)
    request.run()
    assert request.ids == whole
    with pytest.raises(TrigraphError, match="activations float32, WebGPU plugin"):
        exact.generate(PROMPT, cache=path)


def test_receipts(engine: Engine, exact: Engine) -> None:
    """They state the arithmetic, which alone can check them."""
    request = engine.generate(PROMPT, max_tokens=12, temperature=1, seed=3, receipt=True)
    request.run()
    receipt = engine.receipt(request)
    assert engine.verify(receipt).equal
    with pytest.raises(TrigraphError, match=r"the receipt is of model .*activations float32, WebGPU plugin"):
        exact.verify(receipt)


@pytest.mark.slow
def test_text_where_images_could_be(packages: Packages, seeing: SeeingPackages) -> None:
    """Text has the ids that it has without a tower; a prompt with an image fails with a sentence."""
    plugin()
    with load(packages("tiny-dense", "Q8_0"), device="webgpu", context=256) as blind:
        known = _ids(blind, [token % 250 for token in PROMPT], temperature=0)
    with load(seeing("tiny-dense", "Q8_0"), device="webgpu", context=256) as other:
        assert _ids(other, [token % 250 for token in PROMPT], temperature=0) == known
        with pytest.raises(TrigraphError, match="webgpu does not read images yet; use device=cpu"):
            other.generate(prompt_of(5, (2, 2), 3), max_tokens=2).run()
        assert _ids(other, [token % 250 for token in PROMPT], temperature=0) == known
