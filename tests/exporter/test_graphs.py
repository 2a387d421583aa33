"""The exported graphs in ONNX Runtime against oracles: llama.cpp's recorded numbers, and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest

from support.models.random_gguf import Architecture, write_random
from support.oracles.transformers import load_transformers, new_head, run_trunk
from trigraph.exporter import ExportOptions, export
from trigraph.models import open_model
from trigraph.runtime import load
from trigraph.runtime.execution.steps import Steps

ORACLE = Path(__file__).parents[1] / "oracle" / "qwen35moe"
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
# Both sides compute in float32 at |logit| up to 10; differences seen are 2e-5.
TOLERANCE = 1e-4
# A row of 8-bit activations is off by up to 1/254 of its largest value in each product. The errors are random and
# grow with the depth: logits of these models (deviation 2.5) were seen to move by up to 0.73, on average by 0.045.
INT8_MEAN_TOLERANCE = 0.15

pytestmark = pytest.mark.usefixtures("operator_library")

# Verifies of every length, then prefill in the middle of a text.
PIECES = (1, 2, 3, 8, 5, 7, 4, 6)


def open_steps(source: Path, tmp_path: Path, **options: Any) -> Steps:
    """The exported file in sessions with two threads; keys and values in float32 unless said otherwise."""
    package = tmp_path / "package"
    export(source, package, ExportOptions(**({"kv_type": "f32", "activations": "float32"} | options)))
    return load(package, threads=2, context=256).steps


def run(steps: Steps, tokens: list[int], prompt: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Hidden states and logits from the prompt's last token on: a prefill, then verifies that keep all."""
    sequence = steps.state.new()
    step = steps.prefill([sequence], [tokens[:prompt]])
    hidden, logits = [step.hidden.copy()], [step.logits.copy()]
    start = prompt
    for count in PIECES * (1 + len(tokens) // sum(PIECES)):
        piece = tokens[start : start + count]
        if not piece:
            break
        step = steps.verify([sequence], [piece])
        hidden.append(step.hidden.copy())
        logits.append(step.logits.copy())
        steps.keep(sequence, len(piece))
        start += count
    steps.state.release(sequence)
    return np.concatenate(hidden), np.concatenate(logits)


def chain(steps: Steps, tokens: list[int], token: int, count: int) -> tuple[list[int], list[float], list[Any]]:
    """Drafted tokens, their probabilities and the head's hidden states after `tokens` and a next `token`."""
    sequence = steps.state.new()
    steps.prefill([sequence], [tokens])
    drafts, probabilities, hidden = [], [], []
    draft = steps.draft([sequence], [token])
    for _ in range(count):
        drafts.append(int(draft.tokens[0]))
        probabilities.append(float(draft.probability[0]))
        hidden.append(draft.hidden[0].copy())
        draft = steps.draft_more([sequence], draft.tokens.tolist(), draft.hidden)
    steps.state.release(sequence)
    return drafts, probabilities, hidden


def test_recorded_of_llama_cpp(tmp_path: Path) -> None:
    expected = {file.stem: np.load(file) for file in ORACLE.glob("*.npy")}
    steps = open_steps(write_random(tmp_path / "a.gguf", "qwen35moe"), tmp_path)
    tokens = expected["tokens"].tolist()
    for prompt in (1, 8, len(tokens)):
        hidden, logits = run(steps, tokens, prompt)
        np.testing.assert_allclose(hidden, expected["h_nextn"][prompt - 1 :], rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(logits, expected["logits"][prompt - 1 :], rtol=0, atol=TOLERANCE)
    drafts, probabilities, _ = chain(steps, tokens, int(expected["greedy"][0]), len(expected["draft_tokens"]))
    assert drafts == expected["draft_tokens"].tolist()
    np.testing.assert_allclose(probabilities, _softmax(expected["draft_logits"]).max(-1), rtol=0, atol=TOLERANCE)


def test_recorded_greedy_stream(tmp_path: Path) -> None:
    steps = open_steps(write_random(tmp_path / "a.gguf", "qwen35moe"), tmp_path)
    expected = np.load(ORACLE / "greedy.npy").tolist()
    sequence = steps.state.new()
    stream = [int(steps.prefill([sequence], [np.load(ORACLE / "tokens.npy").tolist()]).tokens[0])]
    while len(stream) < len(expected):
        stream.append(int(steps.verify([sequence], [stream[-1:]]).tokens[0]))
        steps.keep(sequence, 1)
    assert stream == expected


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers(tmp_path: Path, architecture: Architecture) -> None:
    """F32 files: trunk, head and chained drafts, where the text is longer than a chunk of the scan."""
    compare_with_transformers(write_random(tmp_path / "a.gguf", architecture), tmp_path)


MIXES = {
    "Q4_K": {
        "*ffn_down*": "Q6_K",
        "*ssm_out*": "Q5_K",
        "*attn_k.*": "Q8_0",
        "*output.*": "IQ4_XS",
        "*attn_qkv*": "Q3_K",
    },
    "Q2_K": {
        "*ffn_down*": "Q4_0",
        "*ssm_out*": "Q4_1",
        "*attn_k.*": "Q5_0",
        "*output.*": "Q5_1",
        "*attn_qkv*": "IQ4_NL",
    },
    "Q8_0": {"*ffn_down*": "F16", "*ssm_out*": "BF16"},
}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", MIXES)
def test_transformers_on_dequantised_weights(tmp_path: Path, architecture: Architecture, dtype: Any) -> None:
    """Blocks are unpacked exactly, so that the tolerance is that of F32 files."""
    path = write_random(tmp_path / "a.gguf", architecture, preset="blocks", dtype=dtype, types=MIXES[dtype])
    compare_with_transformers(path, tmp_path)


@pytest.mark.slow
def test_transformers_on_a_tied_fused_model(tmp_path: Path) -> None:
    pattern = [False, True, True, False]
    path = write_random(tmp_path / "a.gguf", "qwen35moe", preset="nano", tied=True, fused=True, recurrent=pattern)
    compare_with_transformers(path, tmp_path)


@pytest.mark.slow
def test_int8_activations(tmp_path: Path) -> None:
    path = write_random(tmp_path / "a.gguf", "qwen35moe", preset="blocks", dtype="Q4_K", types=MIXES["Q4_K"])
    trunk, _ = load_transformers(open_model(path))
    tokens = random_tokens(path, 40)
    _, expected = run_trunk(trunk, np.array(tokens))
    _, logits = run(open_steps(path, tmp_path, activations="int8"), tokens, 8)
    assert np.abs(logits - expected[7:]).mean() < INT8_MEAN_TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_prefill_in_chunks(tmp_path: Path, architecture: Architecture) -> None:
    path = write_random(tmp_path / "a.gguf", architecture, preset="nano")
    package = tmp_path / "package"
    export(path, package, ExportOptions(kv_type="f32"))
    tokens = random_tokens(path, 150)
    whole = None
    for chunk in (150, 1, 7, 64, 65, 149):
        steps = load(package, threads=2, context=256, chunk=chunk).steps
        step = steps.prefill([steps.state.new()], [tokens])
        whole = step if whole is None else whole
        np.testing.assert_allclose(step.logits, whole.logits, rtol=0, atol=TOLERANCE, err_msg=f"chunk of {chunk}")


def random_tokens(path: Path, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(3).integers(0, open_model(path).config.vocab, count)]


def compare_with_transformers(path: Path, tmp_path: Path) -> None:
    trunk, mtp = load_transformers(open_model(path))
    tokens = random_tokens(path, 90)
    their_hidden, their_logits = run_trunk(trunk, np.array(tokens))
    steps = open_steps(path, tmp_path)
    for prompt in (3, 70):
        hidden, logits = run(steps, tokens, prompt)
        np.testing.assert_allclose(hidden, their_hidden[prompt - 1 :], rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(logits, their_logits[prompt - 1 :], rtol=0, atol=TOLERANCE)

    head, start = new_head(mtp), len(tokens)
    head(np.array(tokens), np.concatenate([np.zeros_like(their_hidden[:1]), their_hidden[:-1]]))
    token, previous = [7], their_hidden[-1:]
    drafts, probabilities, hiddens = chain(steps, tokens, token[0], 4)
    for step, draft in enumerate(drafts):
        previous, logits = head(np.array(token), previous, start + step)
        np.testing.assert_allclose(hiddens[step], previous[0], rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(probabilities[step], _softmax(logits).max(), rtol=0, atol=TOLERANCE)
        assert draft == logits[0].argmax()
        token = [draft]


def _softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True), np.float32)
