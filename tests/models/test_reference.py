"""The NumPy forward pass against llama.cpp, against transformers, and against itself step by step."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest

from support.models.gguf_bytes import Entry
from support.models.random_gguf import Architecture, changed, write_random
from support.oracles.llama import Llama, log_softmax
from support.oracles.transformers import load_transformers, new_head, run_trunk
from trigraph.models import Model, TrigraphError, open_model
from trigraph.models.reference import Reference, State

ORACLE = Path(__file__).parents[1] / "oracle" / "qwen35moe"
# Of the file that llama.cpp read when it made the numbers in ORACLE.
ORACLE_SHA256 = "e561cabd36aed1f2dabb17de234e84eb25779addc39a2e435515eba1137e60b2"
# Both sides compute in float32 at |logit| up to 10; differences seen are 2e-5.
TOLERANCE = 1e-4
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)


def shifted(hidden: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """For each token the hidden state of the one before it, zeros for the first."""
    return np.concatenate([np.zeros_like(hidden[:1]), hidden[:-1]])


def random_tokens(model: Model, count: int, seed: int = 3) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, model.config.vocab, count)


def assert_close(found: npt.NDArray[Any], expected: npt.NDArray[Any], tolerance: float = TOLERANCE) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < tolerance


def test_recorded_of_llama_cpp(tmp_path: Path) -> None:
    path = write_random(tmp_path / "a.gguf", "qwen35moe")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == ORACLE_SHA256
    expected = {file.stem: np.load(file) for file in ORACLE.glob("*.npy")}
    reference, tokens = Reference(open_model(path)), expected["tokens"]

    hidden, logits = reference.trunk(tokens)
    assert_close(hidden, expected["h_nextn"])
    assert_close(logits, expected["logits"])
    mtp_hidden, mtp_logits = reference.mtp(tokens, shifted(hidden))
    assert_close(mtp_hidden, expected["mtp_h"])
    assert_close(mtp_logits, expected["mtp_logits"])

    following = logits[-1].argmax()
    assert following == expected["greedy"][0]
    previous = np.concatenate([np.zeros_like(hidden[:1]), hidden])
    drafts, draft_logits = reference.draft([*tokens, following], previous, len(expected["draft_tokens"]))
    assert drafts.tolist() == expected["draft_tokens"].tolist()
    assert_close(draft_logits, expected["draft_logits"])


def test_recorded_greedy_stream(tmp_path: Path) -> None:
    reference = Reference(open_model(write_random(tmp_path / "a.gguf", "qwen35moe")))
    expected = np.load(ORACLE / "greedy.npy").tolist()
    state = State()
    _, logits = reference.trunk(np.load(ORACLE / "tokens.npy"), state)
    stream = [int(logits[-1].argmax())]
    while len(stream) < len(expected):
        _, logits = reference.trunk(stream[-1:], state)
        stream.append(int(logits[-1].argmax()))
    assert stream == expected


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_llama_cpp(tmp_path: Path, architecture: Architecture) -> None:
    """Logits alone: that is what its server gives."""
    path = write_random(tmp_path / "a.gguf", architecture)
    model, llama = open_model(path), Llama(path, context=128)
    tokens = random_tokens(model, 100)
    expected = log_softmax(Reference(model).trunk(tokens)[1])
    for count in (1, 2, 5, 64, 65, 100):
        assert_close(llama.log_probabilities(tokens[:count].tolist(), model.config.vocab), expected[count - 1])


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["qwen35moe", "qwen3next"])
def test_expert_weights_that_are_not_normalised(tmp_path: Path, architecture: Architecture) -> None:
    """As transformers does: qwen3next has the choice, qwen35moe has not. llama.cpp normalises always."""

    def off(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        pairs[f"{architecture}.expert_weights_norm"] = False

    model = open_model(path := changed(tmp_path, off, architecture))
    tokens = random_tokens(model, 20)
    trunk, _ = load_transformers(model)
    logits = Reference(model).trunk(tokens)[1]
    assert_close(logits, run_trunk(trunk, tokens)[1])
    theirs = Llama(path).log_probabilities(tokens.tolist(), model.config.vocab)
    normed = replace(model, config=replace(model.config, normalize_experts=True))
    assert_close(log_softmax(Reference(normed).trunk(tokens)[1])[-1], theirs)
    assert (np.abs(log_softmax(logits)[-1] - theirs).max() < TOLERANCE) == (architecture == "qwen35moe")


def test_recorded_logits_are_those_of_the_wheel(tmp_path: Path) -> None:
    llama = Llama(write_random(tmp_path / "a.gguf", "qwen35moe"))
    tokens, expected = (np.load(ORACLE / f"{name}.npy") for name in ("tokens", "logits"))
    for count in (1, 2, 31, 48):
        found = llama.log_probabilities(tokens[:count].tolist(), expected.shape[1])
        assert_close(found, log_softmax(expected[count - 1]))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers(tmp_path: Path, architecture: Architecture) -> None:
    model = open_model(write_random(tmp_path / "a.gguf", architecture))
    _compare_with_transformers(model, TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers_on_dequantised_weights(tmp_path: Path, architecture: Architecture) -> None:
    """Both sides compute in floating point on the same dequantised weights, so the tolerance is that of F32 files."""
    types = {
        "*ffn_down*": "Q6_K",
        "*ssm_out*": "Q5_K",
        "*attn_k.*": "Q8_0",
        "*output.*": "IQ4_XS",
        "*attn_qkv*": "Q3_K",
    }
    path = write_random(tmp_path / "a.gguf", architecture, preset="blocks", dtype="Q4_K", types=types)
    _compare_with_transformers(open_model(path), TOLERANCE)


@pytest.mark.slow
def test_transformers_on_a_tied_model_with_listed_layers(tmp_path: Path) -> None:
    pattern = [False, True, True, False]
    path = write_random(tmp_path / "a.gguf", "qwen35moe", preset="nano", tied=True, fused=True, recurrent=pattern)
    model = open_model(path)
    assert model.config.tied and model.config.recurrent == tuple(pattern)
    _compare_with_transformers(model, TOLERANCE)


def _compare_with_transformers(model: Model, tolerance: float) -> None:
    trunk, mtp = load_transformers(model)
    reference, tokens = Reference(model), random_tokens(model, 70)  # more than one chunk of 64
    hidden, logits = reference.trunk(tokens)
    their_hidden, their_logits = run_trunk(trunk, tokens)
    assert_close(hidden, their_hidden, tolerance)
    assert_close(logits, their_logits, tolerance)

    head, start = new_head(mtp), len(tokens) - 1
    their_hidden, their_logits = head(tokens[:-1], shifted(hidden)[:-1])
    ours_hidden, ours_logits = reference.mtp(tokens[:-1], shifted(hidden)[:-1])
    assert_close(ours_hidden, their_hidden, tolerance)
    assert_close(ours_logits, their_logits, tolerance)
    drafts, draft_logits = reference.draft(tokens, shifted(hidden), 4)
    token, previous = tokens[-1:], shifted(hidden)[-1:]
    for step in range(4):  # chained: the head's own hidden state goes back in
        chained, their_logits = head(token, previous, start + step)
        assert_close(draft_logits[step : step + 1], their_logits, tolerance)
        token, previous = drafts[step : step + 1], chained.astype(np.float64)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_step_by_step_equals_at_once(tmp_path: Path, architecture: Architecture) -> None:
    model = open_model(write_random(tmp_path / "a.gguf", architecture, preset="nano"))
    reference, tokens = Reference(model), random_tokens(model, 24)
    hidden, logits = reference.trunk(tokens)
    mtp_hidden, mtp_logits = reference.mtp(tokens, shifted(hidden))
    trunk_state, mtp_state, at = State(), State(), 0
    for size in (1, 2, 5, 16):
        part = slice(at, at + size)
        found = [*reference.trunk(tokens[part], trunk_state)]
        found += reference.mtp(tokens[part], shifted(hidden)[part], mtp_state)
        for ours, whole in zip(found, (hidden, logits, mtp_hidden, mtp_logits), strict=True):
            assert_close(ours, whole[part], 1e-10)
        at += size


def test_drafting_leaves_the_state_at_the_true_tokens(tmp_path: Path) -> None:
    model = open_model(write_random(tmp_path / "a.gguf", "qwen35", preset="nano"))
    reference, tokens = Reference(model), random_tokens(model, 9)
    hidden, _ = reference.trunk(tokens)
    state, plain = State(), State()
    reference.draft(tokens[:8], shifted(hidden)[:8], 5, state)
    reference.mtp(tokens[:8], shifted(hidden)[:8], plain)
    after_draft = reference.mtp(tokens[8:], shifted(hidden)[8:], state)
    np.testing.assert_array_equal(after_draft[1], reference.mtp(tokens[8:], shifted(hidden)[8:], plain)[1])


def test_variants_of_one_model_agree(tmp_path: Path) -> None:
    """Fused experts, and a head in a file of its own, are the same model stored differently."""
    whole = open_model(write_random(tmp_path / "whole.gguf", "qwen35moe", preset="nano"))
    fused = open_model(write_random(tmp_path / "fused.gguf", "qwen35moe", preset="nano", fused=True))
    trunk = write_random(tmp_path / "trunk.gguf", "qwen35moe", preset="nano", mtp=False)
    head = write_random(tmp_path / "mtp-head.gguf", "qwen35moe", preset="nano", mtp="only")
    tokens = random_tokens(whole, 10)
    hidden, logits = Reference(whole).trunk(tokens)
    _, mtp_logits = Reference(whole).mtp(tokens, shifted(hidden))
    for other in (fused, open_model(trunk, head)):
        np.testing.assert_array_equal(Reference(other).trunk(tokens)[1], logits)
        np.testing.assert_array_equal(Reference(other).mtp(tokens, shifted(hidden))[1], mtp_logits)
    with pytest.raises(TrigraphError, match="has no MTP head"):
        Reference(open_model(trunk)).mtp(tokens, shifted(hidden))
