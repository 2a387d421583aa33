"""Portable packages: with the library they are kernel packages, without it their function bodies do the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from support.models.hollow import write_hollow
from support.models.random_gguf import write_random
from trigraph.custom_ops import DOMAIN
from trigraph.exporter import ExportOptions, export, read_manifest
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, load
from trigraph.runtime.cli.app import main
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.requests.options import Options
from trigraph.runtime.sampling.sampling import Sampling
from trigraph.runtime.state.sequence import Sequence

Array = NDArray[Any]
TOLERANCE = 1e-4
K = 8

Q4_K_MIX = {
    "*ffn_down*": "Q6_K", "*ssm_out*": "Q5_K", "*attn_k.*": "Q8_0", "*output.*": "IQ4_XS", "*attn_qkv*": "Q3_K",
}  # fmt: skip
Q2_K_MIX = {
    "*ffn_down*": "Q4_0", "*ssm_out*": "Q4_1", "*attn_k.*": "Q5_0", "*output.*": "Q5_1", "*attn_qkv*": "IQ4_NL",
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "qwen35": {"preset": "nano"},
    "qwen35moe": {"preset": "nano"},
    "qwen3next": {"preset": "nano"},
    "qwen35moe, fused, tied": {"preset": "nano", "fused": True, "tied": True, "dtype": "Q8_0"},
    "qwen35moe, Q4_K": {"preset": "blocks", "dtype": "Q4_K", "types": Q4_K_MIX},
    "qwen35, Q2_K": {"preset": "blocks", "dtype": "Q2_K", "types": Q2_K_MIX},
    "qwen3next, F16 and BF16": {"preset": "nano", "dtype": "F16", "types": {"*ffn_down*": "BF16", "*ssm_out*": "BF16"}},
}


@pytest.fixture
def without_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """`load` on a machine that has no operator library."""

    def load_without(package: Path, **options: Any) -> Engine:
        with monkeypatch.context() as patch:
            patch.setenv("TRIGRAPH_LIBRARY_DIR", str(tmp_path))
            return load(package, **options)

    return load_without


def source(model: str, tmp_path: Path, tiny_gguf: Path) -> Path:
    if model == "tiny":
        return tiny_gguf
    return write_random(tmp_path / "model.gguf", model.split(",")[0], **MODELS[model])  # type: ignore[arg-type]


@dataclass
class Script:
    """A fixed course of steps of two texts; yields what each step gave."""

    steps: Steps
    seed: int = 0

    def run(self) -> Iterator[dict[str, Array]]:
        rng = np.random.default_rng(self.seed)
        steps, vocab = self.steps, self.steps.vocab
        texts = [steps.new_sequence(), steps.new_sequence()]
        yield self._result(steps.prefill(texts, [rng.integers(0, vocab, n).tolist() for n in (70, 5)]))
        for round in range(12):
            members = texts if round % 3 else [texts[round % 2]]
            if steps.can_draft:
                draft = steps.draft(members, rng.integers(0, vocab, len(members)).tolist())
                yield {"probability": draft.probability.copy(), "draft hidden": draft.hidden.copy()}
                draft = steps.draft_more(members, draft.tokens.tolist(), draft.hidden)
                yield {"probability": draft.probability.copy(), "draft hidden": draft.hidden.copy()}
            counts = rng.integers(1, K + 1, len(members))
            yield self._result(steps.verify(members, [rng.integers(0, vocab, n).tolist() for n in counts]))
            for text, count in zip(members, counts.tolist(), strict=True):
                steps.keep(text, int(rng.integers(0, count + 1)))
            yield self._state(texts)
        fork = steps.fork(texts[1])
        yield self._result(steps.verify([fork, texts[1]], [[3], [4, 5]]))
        yield self._result(steps.prefill([texts[0]], [rng.integers(0, vocab, 6).tolist()]))
        yield self._state([*texts, fork])

    def _result(self, result: Any) -> dict[str, Array]:
        return {"logits": result.logits.copy(), "hidden": result.hidden.copy()}

    def _state(self, texts: list[Sequence]) -> dict[str, Array]:
        """What later steps may read of the state of some texts."""
        found = {}
        for name, tensor in self.steps.state.tensors.items():
            for index, text in enumerate(texts):
                state = tensor[text.slot]
                if not name.startswith("gdn."):
                    pages = tensor[text.pages[: text.page_count]]
                    end = min(text.mtp_len, text.length) if name.startswith("mtp.") else text.length
                    state = pages.reshape(-1, *pages.shape[2:])[:end]
                found[f"{name} of text {index}"] = state.astype(np.float32)
        return found


def assert_close(found: dict[str, Array], wanted: dict[str, Array], step: int) -> None:
    assert found.keys() == wanted.keys()
    for name, expected in wanted.items():
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=TOLERANCE, err_msg=f"{name} after step {step}")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny", *MODELS])
def test_bodies_agree_with_kernels(
    model: str, tmp_path: Path, tiny_gguf: Path, operator_library: Path, without_library: Callable[..., Engine]
) -> None:
    """Prefill, drafts, verifies with random accept histories, forks: results and state after every step."""
    path = source(model, tmp_path, tiny_gguf)
    export(path, tmp_path / "kernels", ExportOptions(kv_type="f32", weights="reference", activations="float32"))
    manifest = export(path, tmp_path / "portable", ExportOptions(kv_type="f32", weights="reference", portable=True))
    assert manifest.portable and not manifest.notices
    kernels = load(tmp_path / "kernels", threads=2, context=256, sequences=4)
    bodies = without_library(tmp_path / "portable", threads=2, context=256, sequences=4)
    assert bodies.model.kernels == "no" and "function bodies" in bodies.model.notices[0]
    steps = zip(Script(bodies.steps).run(), Script(kernels.steps).run(), strict=True)
    for number, (found, wanted) in enumerate(steps):
        assert_close(found, wanted, number)


@pytest.mark.slow
def test_halves_of_keys_and_values(
    tmp_path: Path, tiny_gguf: Path, operator_library: Path, without_library: Callable[..., Engine]
) -> None:
    """A float32 rounding error may move a key to the next half, one part in 2048."""
    for portable in (False, True):
        export(
            tiny_gguf,
            tmp_path / str(portable),
            ExportOptions(weights="reference", portable=portable, activations="float32"),
        )
    kernels = load(tmp_path / "False", threads=2, context=256, sequences=4)
    bodies = without_library(tmp_path / "True", threads=2, context=256, sequences=4)
    for found, wanted in zip(Script(bodies.steps).run(), Script(kernels.steps).run(), strict=True):
        for name, expected in wanted.items():
            np.testing.assert_allclose(found[name], expected, rtol=1e-3, atol=5e-3, err_msg=name)


def test_the_library_is_used_where_it_is(tmp_path: Path, tiny_gguf: Path, operator_library: Path) -> None:
    """With the library a portable package gives a kernel package's bits, on one buffer for each state tensor."""
    for portable in (False, True):
        export(
            tiny_gguf,
            tmp_path / str(portable),
            ExportOptions(weights="reference", portable=portable, activations="float32"),
        )
    both = [load(tmp_path / name, threads=2, context=256, sequences=4) for name in ("True", "False")]
    assert (
        both[0].model.kernels == both[1].model.kernels and both[0].steps.state.nbytes() == both[1].steps.state.nbytes()
    )
    for found, wanted in zip(*(Script(engine.steps).run() for engine in both), strict=True):
        for name, expected in wanted.items():
            np.testing.assert_array_equal(found[name], expected, err_msg=name)


@pytest.mark.slow
def test_text_without_library(
    tmp_path: Path, tiny_gguf: Path, operator_library: Path, without_library: Callable[..., Engine]
) -> None:
    """Greedy streams of bodies and kernels are equal, with and without drafts."""
    export(tiny_gguf, tmp_path / "package", ExportOptions(weights="reference", portable=True))
    engines = without_library(tmp_path / "package", threads=2), load(tmp_path / "package", threads=2)
    greedy = Options(sampling=Sampling(temperature=0.0), max_tokens=24, speculate=False)
    streams = []
    for engine in engines:
        for options in (greedy, replace(greedy, speculate=True, draft_tokens=3)):
            generation = engine.generate("In the beginning", options)
            generation.run()
            streams.append(generation.ids)
    assert all(stream == streams[0] for stream in streams)


def test_a_kernel_package_needs_the_library(
    tmp_path: Path, tiny_gguf: Path, operator_library: Path, without_library: Callable[..., Engine]
) -> None:
    export(tiny_gguf, tmp_path / "package", ExportOptions(weights="reference"))
    with pytest.raises(TrigraphError, match=r"there is no \S*trigraph_cpu"):
        without_library(tmp_path / "package")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen35", "qwen35moe, Q4_K"])
def test_graphs_are_standard_onnx(model: str, tmp_path: Path, tiny_gguf: Path, operator_library: Path) -> None:
    """The checker takes the graphs, bodies are made of standard operators, and a session without options opens them."""
    options = ExportOptions(weights="copy", portable=True)
    manifest = export(source(model, tmp_path, tiny_gguf), tmp_path / "package", options)
    for name in manifest.graphs:
        path = tmp_path / "package" / f"{name}.onnx"
        onnx.checker.check_model(path)
        graph = onnx.load(path, load_external_data=False)
        own = {(function.name, function.overload) for function in graph.functions}
        assert {(node.op_type, node.overload) for node in graph.graph.node if node.domain == DOMAIN} <= own
        for function in graph.functions:
            for node in function.node:
                assert node.domain in ("", DOMAIN)
                assert node.domain == "" or (node.op_type, node.overload) in own
            assert {opset.version for opset in function.opset_import if not opset.domain} <= {23}
        ort.InferenceSession(path, providers=["CPUExecutionProvider"])


def test_int8_activations_give_way(tmp_path: Path, tiny_gguf: Path, operator_library: Path) -> None:
    options = ExportOptions(weights="reference", portable=True, activations="int8")
    manifest = export(tiny_gguf, tmp_path / "package", options)
    assert manifest.activations == "float32" and "int8" in manifest.notices[0]


def test_memory_of_a_large_model_is_told(tmp_path: Path, operator_library: Path) -> None:
    path = write_hollow("qwen3.5-0.8b", tmp_path / "model.gguf", vocab=2000)
    manifest = export(path, tmp_path / "package", ExportOptions(weights="reference", portable=True))
    assert "without the operator library takes about" in manifest.notices[0]
    assert not export(path, tmp_path / "package", ExportOptions(weights="reference")).notices


def test_command_line(tmp_path: Path, tiny_gguf: Path, operator_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["trigraph", "export", str(tiny_gguf), "-o", str(tmp_path / "package"), "--reference", "--portable"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code and read_manifest(tmp_path / "package").portable
