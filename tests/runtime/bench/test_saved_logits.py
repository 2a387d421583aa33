"""Files of logits as llama.cpp writes them, from their layout, and its figures of a comparison, from NumPy."""

import json
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.command import Run, assert_one_line_error
from support.fakes.engine import METADATA, VOCAB, engine_of
from support.fakes.model import chaotic
from support.oracles.llama import log_softmax
from trigraph.models.errors import TrigraphError
from trigraph.models.tokenizer import tokenizer_json
from trigraph.runtime import Engine
from trigraph.runtime.bench.divergence import Comparison, Divergence, log_probabilities
from trigraph.runtime.bench.perplexity import score
from trigraph.runtime.bench.saved_logits import FLOOR, SavedLogits, logits_writer
from trigraph.runtime.text.tokenizer import Tokenizer

Rows = list[list[np.ndarray]]
ORACLE = Path(__file__).parents[2] / "oracle" / "perplexity" / "base.kld"
TEXT = "In the beginning God created the heaven and the earth. And the earth was without form, and void"
CONTEXT = 16


def file_bytes(windows: list[list[int]], rows: Rows, vocab: int) -> bytes:
    """A file with the log-probabilities of each window's second half, as llama.cpp's source describes it."""
    parts = [b"_logits_", struct.pack("<3i", len(windows[0]), vocab, len(windows))]
    parts += [struct.pack("<i", token) for window in windows for token in window]
    for row in (row for window in rows for row in window):
        log_p = log_softmax(row)
        low = max(float(log_p.min()), float(log_p.max()) - 16)
        scale = (float(log_p.max()) - low) / 65535
        codes = [round((max(float(value), low) - low) / scale) if scale else 0 for value in log_p]
        parts.append(struct.pack(f"<2f{vocab}H", scale, low, *codes) + bytes(2 * (vocab % 2)))
    return b"".join(parts)


def windows_of(text: str = TEXT, size: int = CONTEXT) -> list[list[int]]:
    ids = list(text.encode())
    return [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]


def rows_of(logits: Callable[[tuple[int, ...]], np.ndarray], windows: list[list[int]]) -> Rows:
    return [[logits(tuple(w[: i + 1])) for i in range(len(w) // 2, len(w) - 1)] for w in windows]


def other(history: tuple[int, ...]) -> np.ndarray:
    """Logits not far from those of `chaotic`; some tokens have next to no chance."""
    logits = chaotic(VOCAB)(history) + 0.4 * chaotic(VOCAB)((*history, 1))
    return np.where(np.arange(VOCAB) % 7 == 3, logits - 40, logits).astype(np.float32)


def figures(base: np.ndarray, ours: np.ndarray, tokens: np.ndarray, floor: float = -np.inf) -> dict[str, float]:
    """What llama.cpp's documentation says of each figure, from log-probabilities [tokens, vocabulary]."""
    count, at = len(tokens), np.arange(len(tokens))
    kld = np.where(base > floor, np.exp(base) * (base - ours), 0).sum(-1)
    nll, nll_base = -ours[at, tokens], -base[at, tokens]
    change = np.exp(-nll) - np.exp(-nll_base)
    same = base.argmax(-1) == ours.argmax(-1)
    covariance = np.cov(nll, nll_base, ddof=1) / count
    ratio_error = np.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    rms = np.sqrt(np.mean(change**2))
    return {
        "mean": kld.mean(),
        "mean_error": kld.std(ddof=1) / np.sqrt(count),
        "median": float(np.median(kld)),
        "p99": float(np.percentile(kld, 99)),
        "p999": float(np.percentile(kld, 99.9)),
        "max": kld.max(),
        "same_top": same.mean(),
        "same_top_error": np.sqrt(same.mean() * (1 - same.mean()) / (count - 1)),
        "reference_nll": nll_base.mean(),
        "log_ratio": nll.mean() - nll_base.mean(),
        "log_ratio_error": ratio_error,
        "ratio": np.exp(nll.mean()) / np.exp(nll_base.mean()),
        "ratio_error": np.exp(nll.mean() - nll_base.mean()) * ratio_error,
        "rms_change": rms,
        "rms_change_error": np.std(change**2, ddof=1) / np.sqrt(count) / 2 / rms,
    }


def assert_figures(found: Divergence | None, expected: dict[str, float], rel: float = 1e-9) -> None:
    assert found is not None
    assert vars(found) == pytest.approx(expected, rel=rel, abs=1e-12)


def flat(rows: Rows) -> np.ndarray:
    return log_softmax(np.array([row for window in rows for row in window]))


def predicted(windows: list[list[int]]) -> np.ndarray:
    return np.array([token for window in windows for token in window[len(window) // 2 + 1 :]])


def recorded(history: list[int], *, quantised: bool) -> np.ndarray:
    """The logits that llama.cpp's tool was given: see tests/oracle/README.md."""
    mixed = 0
    for token in history:
        mixed = (mixed * 31 + token + 1) % 65521
    v = np.arange(33)
    base = mixed * (v + 3) * (v + 7) % 2003 / 200 - 5 - np.where(v % 7 == 3, 20, 0)
    return (base + (mixed * (v + 11) % 101 / 250 - 0.2 if quantised else 0)).astype(np.float32)


def test_what_llama_cpp_wrote_and_printed(tmp_path: Path) -> None:
    """Its file is read, ours is the same to a step of rounding, and so are the figures to its last digit."""
    saved, path = SavedLogits(ORACLE), tmp_path / "base.kld"
    assert saved.tokens == np.reshape([(5 * k * k + 3 * k) % 33 for k in range(256)], (16, 16)).tolist()
    comparison = Comparison(FLOOR)
    with logits_writer(path, saved.tokens, 33) as writer:
        for number, window in enumerate(saved.tokens):
            for place in range(8, 15):
                writer.write(number, place, recorded(window[: place + 1], quantised=False))
                ours = log_probabilities(recorded(window[: place + 1], quantised=True))
                comparison.add(saved.row(number, place), ours, window[place + 1])
    start = 20 + 4 * 256
    written, wanted = path.read_bytes(), ORACLE.read_bytes()
    assert written[:start] == wanted[:start] and len(written) == len(wanted)
    layout = np.dtype([("floats", "<f4", 2), ("steps", "<u2", 33), ("nothing", "<u2")])
    mine, theirs = (np.frombuffer(content[start:], layout) for content in (written, wanted))
    np.testing.assert_allclose(mine["floats"], theirs["floats"], rtol=1e-6)
    assert np.abs(mine["steps"].astype(int) - theirs["steps"]).max() <= 1
    found = comparison.divergence()
    for name, value, digits in (
        ("mean", 0.005283, 6), ("mean_error", 0.000219, 6), ("max", 0.012332, 6), ("p999", 0.012281, 6),
        ("p99", 0.011634, 6), ("median", 0.005212, 6), ("log_ratio", 1.007115, 6), ("log_ratio_error", 0.262877, 6),
        ("ratio", 2.737691, 6), ("ratio_error", 0.719675, 6), ("rms_change", 0.00725, 5),
        ("rms_change_error", 0.00137, 5), ("same_top", 0.82143, 5), ("same_top_error", 0.03635, 5),
    ):  # fmt: skip
        assert getattr(found, name) == pytest.approx(value, abs=0.6 * 10**-digits), name
    assert np.exp(found.reference_nll) == pytest.approx(1963.764073, rel=1e-6)


def test_figures_of_two_models() -> None:
    windows = windows_of()
    found = score(engine_of(other)[0], TEXT, CONTEXT, reference=engine_of(chaotic(VOCAB))[0])
    base, ours = (flat(rows_of(logits, windows)) for logits in (chaotic(VOCAB), other))
    assert_figures(found.divergence, figures(base, ours, predicted(windows)))
    assert found.divergence is not None
    text = "\n".join(found.lines())
    for figure in (f"mean {found.divergence.mean:.3e} +/- ", "99.9 % ", "max ", "same most likely token ", "ratio "):
        assert figure in text


def test_a_file_of_llama_cpp(tmp_path: Path) -> None:
    """Its tokens are scored, and its rule holds: what the reference gives e^-16 or less has no part."""
    windows = windows_of()
    content = file_bytes(windows, rows_of(other, windows), VOCAB)
    path = tmp_path / "base.kld"
    path.write_bytes(content)
    saved = SavedLogits(path)
    assert (saved.context, saved.tokens) == (CONTEXT, windows)
    found = score(engine_of(chaotic(VOCAB))[0], None, CONTEXT, reference=saved)
    base = np.array([saved.row(w, i) for w in range(len(windows)) for i in range(CONTEXT // 2, CONTEXT - 1)])
    exact = flat(rows_of(other, windows))
    assert np.abs(base - exact)[exact > -16].max() < 16 / 65535
    ours = flat(rows_of(chaotic(VOCAB), windows))
    assert_figures(found.divergence, figures(base, ours, predicted(windows), floor=-16))
    assert found.nll == score(engine_of(chaotic(VOCAB))[0], TEXT, CONTEXT).nll
    first = score(engine_of(chaotic(VOCAB))[0], None, CONTEXT, windows=2, reference=saved)
    assert (first.windows, first.counted) == (2, 2 * (CONTEXT // 2 - 1))


@pytest.mark.parametrize("logits", [chaotic(VOCAB), other, lambda history: np.zeros(VOCAB, np.float32)])
def test_a_file_that_is_written(logits: Callable[[tuple[int, ...]], np.ndarray], tmp_path: Path) -> None:
    """It has the layout, to a step of rounding, and the model does not differ from itself."""
    windows, path = windows_of(), tmp_path / "base.kld"
    whole = score(engine_of(logits)[0], TEXT, CONTEXT, save=path)
    ours, expected = path.read_bytes(), file_bytes(windows, rows_of(logits, windows), VOCAB)
    start = 20 + 4 * len(windows) * CONTEXT
    assert ours[:start] == expected[:start] and len(ours) == len(expected)
    layout = np.dtype([("floats", "<f4", 2), ("steps", "<u2", VOCAB)])
    found, wanted = (np.frombuffer(content[start:], layout) for content in (ours, expected))
    np.testing.assert_allclose(found["floats"], wanted["floats"], rtol=1e-4, atol=1e-6)
    assert np.abs(found["steps"].astype(int) - wanted["steps"]).max() <= 1
    same = score(engine_of(logits)[0], None, CONTEXT, reference=SavedLogits(path))
    assert replace(same, seconds=0, divergence=None) == replace(whole, seconds=0)
    assert same.divergence is not None
    exact = flat(rows_of(logits, windows))
    kept = np.maximum(exact, exact.max(-1, keepdims=True) - 16)  # the file has nothing below
    lost = (exact - kept)[np.arange(len(kept)), predicted(windows)].mean()
    assert abs(same.divergence.mean) < 1e-5 and abs(same.divergence.log_ratio + lost) < 1e-4


def test_an_odd_vocabulary(tmp_path: Path) -> None:
    path, windows = tmp_path / "base.kld", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]
    rows = [[np.arange(5, dtype=np.float32) * (i + place) for place in (2, 3)] for i in range(2)]
    with logits_writer(path, windows, 5) as writer:
        for window, place in ((1, 3), (0, 2), (1, 2), (0, 3)):
            writer.write(window, place, rows[window][place - 2])
    assert len(path.read_bytes()) == len(file_bytes(windows, rows, 5)) == 20 + 40 + 4 * 20
    saved = SavedLogits(path)
    for window, place in ((0, 2), (1, 3)):
        np.testing.assert_allclose(saved.row(window, place), log_softmax(rows[window][place - 2]), atol=2e-4)


def test_windows_of_a_file_begin_with_a_start_token_where_the_model_wants_one(tmp_path: Path) -> None:
    """llama.cpp writes the tokens of the text, and puts the start token in their place when it computes."""
    engine, _ = engine_of(lambda history: np.eye(VOCAB, dtype=np.float32)[history[0]])
    engine = Engine(replace(engine.model, tokenizer=Tokenizer(tokenizer_json(METADATA), [], bos_id=7)))
    windows = [[1, 7, 7, 7, 7, 7]] * 2
    rows = [[np.eye(VOCAB, dtype=np.float32)[7]] * 2] * 2
    (tmp_path / "base.kld").write_bytes(file_bytes(windows, rows, VOCAB))
    result = score(engine, None, 6, reference=SavedLogits(tmp_path / "base.kld"))
    assert result.nll == pytest.approx(np.log(np.e + VOCAB - 1) - 1)


GOOD = file_bytes(windows_of(), rows_of(chaotic(VOCAB), windows_of()), VOCAB)


def changed(at: int, form: str, *values: Any) -> bytes:
    data = bytearray(GOOD)
    struct.pack_into(form, data, at, *values)
    return bytes(data)


ROWS = 20 + 4 * len(windows_of()) * CONTEXT


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with b''; saved logits begin with b'_logits_'"),
        (b"ggml" + GOOD[4:], "begins with b'ggmlits_'"),
        (GOOD[:19], "cut off in its header"),
        (changed(8, "<i", 2), "has 2 tokens a window; 3 is the least"),
        (changed(8, "<i", -16), "has -16 tokens a window"),
        (changed(12, "<i", 0), "has 0 tokens in the vocabulary"),
        (changed(16, "<i", 0), "has 0 windows"),
        (changed(8, "<3i", *[2**31 - 1] * 3), "its 2147483647 windows of 2147483647 tokens"),
        (GOOD[:-1], f"has {len(GOOD) - 1} bytes; its 5 windows of 16 tokens, with a vocabulary of 258, take"),
        (GOOD + b"\0", f"has {len(GOOD) + 1} bytes"),
        (changed(20, "<i", VOCAB), f"has the token {VOCAB}; its vocabulary ends at {VOCAB - 1}"),
        (changed(24, "<i", -1), "has the token -1"),
        (changed(ROWS, "<f", float("nan")), "no log-probabilities behind token 8 of window 0: nan a step"),
        (changed(ROWS, "<f", -1.0), "-1 a step"),
        (changed(ROWS, "<f", 1.0), "1 a step"),
        (changed(ROWS + 4, "<f", float("-inf")), "from -inf"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_malformed_files(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "base.kld"
    path.write_bytes(content)
    engine, _ = engine_of(chaotic(VOCAB))
    tracemalloc.start()
    try:
        with pytest.raises(TrigraphError) as error:
            score(engine, None, CONTEXT, reference=SavedLogits(path))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert message in str(error.value) and str(path) in str(error.value)


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "base.kld"
    path.write_bytes(file_bytes([[0, 1, 2]], [[np.zeros(5, np.float32)]], 5))
    with pytest.raises(TrigraphError, match="has logits of 5 tokens, but the model has 258"):
        score(engine_of(chaotic(VOCAB))[0], None, 3, reference=SavedLogits(path))
    with pytest.raises(TrigraphError, match="cannot be written"):
        score(engine_of(chaotic(VOCAB))[0], TEXT, CONTEXT, save=tmp_path / "no" / "base.kld")
    broken, _ = engine_of(lambda history: np.full(VOCAB, np.nan, np.float32))
    with pytest.raises(TrigraphError, match="behind token 8 of window 0 are not finite; nothing is saved"):
        score(broken, TEXT, CONTEXT, save=tmp_path / "new.kld")
    assert not (tmp_path / "new.kld").exists()
    saved = SavedLogits(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TrigraphError, match="became shorter"):
        saved.row(0, 1)
    path.unlink()
    with pytest.raises(TrigraphError, match="cannot be read: No such file"):
        saved.row(0, 1)


def test_command(trigraph: Run, tiny_gguf: Path, operator_library: Path, tmp_path: Path) -> None:
    text, base = tmp_path / "text.txt", tmp_path / "base.kld"
    text.write_text(TEXT * 2)
    command = ["perplexity", tiny_gguf, "-t", 1, "--json"]
    whole = json.loads(trigraph(*command, "-f", text, "-c", 16, "--activations", "float32", "--save-logits", base).out)
    against = json.loads(trigraph(*command, "--against", base).out)
    direct = json.loads(trigraph(*command, "-f", text, "-c", 16, "--against", "float32").out)
    assert against["nll"] == direct["nll"] and against["windows"] == whole["windows"]
    assert against["divergence"] == pytest.approx(direct["divergence"], rel=0.05, abs=2e-4)
    both = trigraph(*command, "-f", text, "--against", base)
    assert_one_line_error(both, "the tokens come with the logits that --against names; leave --file out")
    wrong = trigraph(*command, "-c", 32, "--against", base)
    assert_one_line_error(wrong, "--ctx-size is 32, but the logits that --against names have 16")
    assert_one_line_error(trigraph(*command, "-f", text, "--against", text), "begins with b'In the b'")
