"""The likelihood of a text against transformers, llama.cpp and formulas; what a comparison of two models says."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.command import Run, assert_one_line_error
from support.fakes.engine import METADATA, VOCAB, engine_of
from support.fakes.model import chaotic
from support.models.packages import Packages
from support.oracles.llama import Llama, log_softmax
from support.oracles.transformers import load_transformers, run_trunk
from support.texts.prompts import PROMPTS
from trigraph.models import open_model
from trigraph.models.errors import TrigraphError
from trigraph.models.tokenizer import tokenizer_json
from trigraph.runtime import Engine, load
from trigraph.runtime.bench import perplexity
from trigraph.runtime.bench.perplexity import PARALLEL, Score, score
from trigraph.runtime.requests.logprobs import token_logprob
from trigraph.runtime.text.tokenizer import Tokenizer

TEXT = "\n".join(PROMPTS)
CONTEXT = 64
RECORDED = [
    "0x1.594231af6ca92p+1",
    "0x1.0839f10ac3893p-1",
    "0x1.dae20d28c55a0p+3",
    "0x1.11085ff38d2b4p-13",
    "0x1.595785b7d6792p+1",
]
"""NLL, its error, perplexity, divergence from float32 activations, and the NLL with them, of one window."""


@pytest.fixture(scope="module")
def engine(packages: Packages) -> Callable[[str], Engine]:
    def open_engine(activations: str) -> Engine:
        package = packages("trained", "Q8_0", activations=activations)
        return load(package, context=CONTEXT, threads=1, sequences=PARALLEL)

    return open_engine


def direct(logits: np.ndarray, window: list[int]) -> list[float]:
    """Surprises of the second half of a window, from logits [len(window), vocab]."""
    log_p = log_softmax(logits)
    return [-float(log_p[i, window[i + 1]]) for i in range(len(window) // 2, len(window) - 1)]


def windows(engine: Engine) -> list[list[int]]:
    ids = engine.tokenizer.encode(TEXT)
    whole = [ids[i : i + CONTEXT] for i in range(0, len(ids), CONTEXT)]
    return [window for window in whole if len(window) == CONTEXT]


@pytest.mark.slow
def test_transformers(engine: Callable[[str], Engine], tiny_gguf: Path) -> None:
    ours = engine("float32")
    trunk, _ = load_transformers(open_model(tiny_gguf))
    values = [v for w in windows(ours) for v in direct(run_trunk(trunk, np.array(w))[1], w)]
    result = score(ours, TEXT, CONTEXT)
    assert (result.windows, result.counted) == (len(windows(ours)), len(values))
    assert result.windows > PARALLEL
    assert abs(result.nll - np.mean(values)) < 1e-3
    # llama.cpp's formula
    error = np.sqrt((np.mean(np.square(values)) - np.mean(values) ** 2) / (len(values) - 1))
    assert abs(result.nll_error - error) < 1e-3


@pytest.mark.slow
def test_llama_cpp(engine: Callable[[str], Engine], tiny_gguf: Path) -> None:
    llama, ours = Llama(tiny_gguf, CONTEXT), engine("float32")
    values = [
        -llama.log_probabilities(window[: i + 1], ours.tokenizer.size)[window[i + 1]]
        for window in windows(ours)[:3]
        for i in range(CONTEXT // 2, CONTEXT - 1)
    ]
    # It rounds activations to 8 bits, as our int8 activations do.
    for activations in ("float32", "int8"):
        assert abs(score(engine(activations), TEXT, CONTEXT, windows=3).nll - np.mean(values)) < 1e-2


def test_quantised_keys_and_values(engine: Callable[[str], Engine], packages: Packages) -> None:
    """Perplexity is that of halves to a thousandth, and the next token hardly ever another."""
    package = packages("trained", "Q8_0", activations="float32", kv_type="q8_0")
    quantised = load(package, context=CONTEXT, threads=1, sequences=PARALLEL)
    result = score(quantised, TEXT, CONTEXT, reference=engine("float32"))
    assert result.divergence is not None
    assert abs(result.nll - result.divergence.reference_nll) < 1e-3
    assert 0 < result.divergence.mean < 1e-4 and result.divergence.same_top > 0.99


def test_windows_do_not_depend_on_their_companions(
    engine: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = engine("int8")
    together = score(ours, TEXT, CONTEXT)
    first = score(ours, TEXT, CONTEXT, windows=2)
    monkeypatch.setattr(perplexity, "PARALLEL", 1)
    alone = score(ours, TEXT, CONTEXT)
    assert replace(together, seconds=0) == replace(alone, seconds=0)
    assert (first.windows, first.counted) == (2, 2 * (CONTEXT // 2 - 1))
    assert ours.steps.state.pages.free == ours.steps.state.pages.size, "state was not given back"


def test_figures_are_the_same_on_every_machine(engine: Callable[[str], Engine]) -> None:
    """To the bit: those of tokens are what log-probabilities of completions say, and the whole is recorded."""
    ours = engine("int8")
    result = score(ours, TEXT, CONTEXT, windows=1, reference=engine("float32"))
    window = windows(ours)[0]
    sequence = ours.steps.new_sequence()
    values = []
    for i, token in enumerate(window[1:], 1):
        rows = ours.steps.prefill([sequence], [window[i - 1 : i]])
        values.append(-token_logprob(rows.logits[0], token, 0).logprob)
    ours.steps.release(sequence)
    assert result.nll == math.fsum(values[CONTEXT // 2 :]) / result.counted
    assert result.divergence is not None and result.nll_error is not None
    figures = (result.nll, result.nll_error, result.perplexity, result.divergence.mean, result.divergence.reference_nll)
    assert [figure.hex() for figure in figures] == RECORDED


def test_a_comparison(engine: Callable[[str], Engine]) -> None:
    ours, exact = engine("int8"), engine("float32")
    same = score(ours, TEXT, CONTEXT, reference=engine("int8"))
    assert same.divergence is not None
    assert (same.divergence.max, same.divergence.same_top) == (0, 1)
    assert same.divergence.reference_nll == pytest.approx(same.nll, rel=1e-12)
    result = score(ours, TEXT, CONTEXT, reference=exact)
    assert result.divergence is not None
    assert 0 < result.divergence.median < result.divergence.mean < 0.01 < 20 * result.divergence.max
    assert 0.9 < result.divergence.same_top < 1
    assert result.divergence.reference_nll == pytest.approx(score(exact, TEXT, CONTEXT).nll, rel=1e-12)
    assert len(list(result.lines())) == 4
    assert result.as_json()["divergence"]["mean"] == result.divergence.mean


def test_a_uniform_distribution() -> None:
    engine, _ = engine_of(lambda history: np.zeros(VOCAB, np.float32))
    result = score(engine, "0123456789" * 5, 10)
    assert (result.windows, result.counted) == (5, 20)
    assert result.nll_error == pytest.approx(0, abs=1e-12)
    assert result.perplexity == pytest.approx(VOCAB)


@pytest.mark.parametrize("length", [3, 4, 9, 20, 33, 64, 70])
@pytest.mark.parametrize("context", [3, 16, 64])
def test_each_token_is_predicted_from_those_before_it(length: int, context: int) -> None:
    logits = chaotic(VOCAB)
    engine, _ = engine_of(logits, context=context)
    ids = [i % 256 for i in range(length)]
    size = min(length, context)
    expected = [
        value
        for start in range(0, length - size + 1, size)
        for value in direct(
            np.array([logits(tuple(ids[start : start + i + 1])) for i in range(size)]), ids[start:][:size]
        )
    ]
    text = engine.tokenizer.decode(ids)
    assert score(engine, text, context).nll == pytest.approx(np.mean(expected), rel=1e-5)


def test_windows_begin_with_a_start_token_where_the_model_wants_one() -> None:
    engine, _ = engine_of(lambda history: np.eye(VOCAB, dtype=np.float32)[history[0]])
    engine = Engine(replace(engine.model, tokenizer=Tokenizer(tokenizer_json(METADATA), [], bos_id=7)))
    result = score(engine, "\x07" * 19, 10)
    assert result.windows == 2
    assert result.nll == pytest.approx(np.log(np.e + VOCAB - 1) - 1)


def test_texts_and_models_of_no_use_are_refused() -> None:
    engine, _ = engine_of(chaotic(VOCAB))
    for text, context in (("", 10), ("ab", 10), ("abcdef", 2)):
        with pytest.raises(TrigraphError, match="too short"):
            score(engine, text, context)
    metadata = METADATA | {"tokenizer.ggml.tokens": [*METADATA["tokenizer.ggml.tokens"][:-1], "<other>"]}
    other = Engine(replace(engine.model, tokenizer=Tokenizer(tokenizer_json(metadata))))
    with pytest.raises(TrigraphError, match="different vocabularies"):
        score(engine, "abcdef", 10, reference=other)


def test_command(trigraph: Run, tiny_gguf: Path, operator_library: Path, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    command = ["perplexity", tiny_gguf, "-f", file, "-c", CONTEXT, "-t", 1]
    result = trigraph(*command, "--json", "--against", "float32")
    assert (result.status, result.err) == (0, "")
    content = json.loads(result.out)
    assert content["perplexity"] == pytest.approx(np.exp(content["nll"]))
    assert content["divergence"]["reference_nll"] != content["nll"]
    assert {"windows", "context", "counted", "nll_error", "perplexity_error", "rate"} <= set(content)
    exact = json.loads(trigraph(*command, "--json", "--activations", "float32").out)
    assert exact["nll"] == pytest.approx(content["divergence"]["reference_nll"], rel=1e-12)
    lines = trigraph("perplexity", tiny_gguf, "-f", "-", "-c", CONTEXT, "-t", 1, stdin=TEXT.encode())
    assert f"perplexity {content['perplexity']:.4f} +/- " in lines.out
    assert f"in the second halves of 1 window of {CONTEXT} |" in trigraph(*command, "--chunks", 1).out
    one = json.loads(trigraph(*command, "--json", "--chunks", 1, "--against", tiny_gguf).out)
    assert (one["windows"], one["divergence"]["max"]) == (1, 0)
    one = json.loads(
        trigraph(*command, "--json", "--chunks", 1, "--rope-scaling", "yarn:4", "--against", tiny_gguf).out
    )
    assert one["divergence"]["max"] > 0
    assert_one_line_error(trigraph("perplexity", tiny_gguf), "Missing option")
    assert_one_line_error(trigraph("perplexity", tiny_gguf, "-f", tmp_path / "no.txt"), "no.txt: cannot be read")
    assert_one_line_error(trigraph(*command, "--chunks", 0), "--chunks is 0")
    assert_one_line_error(trigraph(*command, "--activations", "int7"), "int7")
    assert_one_line_error(trigraph(*command, "--against", tmp_path / "no.gguf"), "no.gguf")
    assert_one_line_error(trigraph("perplexity", tiny_gguf, "-f", file, "-c", 99999), "context is 99999")
    package = tmp_path / "package"
    assert trigraph("export", tiny_gguf, "-o", package, "--reference").status == 0
    refused = trigraph("perplexity", package, "-f", file, "--against", "float32")
    assert_one_line_error(refused, "give the .gguf file instead")


def test_one_counted_token_has_no_error() -> None:
    result = score(engine_of(chaotic(VOCAB))[0], "abc", 3)
    assert isinstance(result, Score) and result.nll_error is None and "nan" not in "".join(result.lines())
