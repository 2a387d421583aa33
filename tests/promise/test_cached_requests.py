"""Requests side by side, on a cache that is short of everything and on disk as well, are answered as each alone."""

from pathlib import Path

import numpy as np
import pytest

from support.models.packages import Packages
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.cache import disk_tier, tensor_file
from trigraph.runtime.requests.handle import Handle

MODELS = [
    ("trained", "Q8_0"),
    ("tiny-moe", "Q4_K_M"),
    ("tiny-dense", "mixed"),
    ("tiny-next", "mixed"),
    ("tiny-streams", "mixed"),
]
REQUESTS = 40


def requests(vocab: int) -> list[tuple[list[int], Options]]:
    """Questions about some documents, and some that go on from others."""
    random = np.random.default_rng(1)

    def text(least: int, most: int) -> list[int]:
        return [int(token) for token in random.integers(0, vocab, int(random.integers(least, most)))]

    documents = [text(20, 250) for _ in range(5)]
    found: list[tuple[list[int], Options]] = []
    for seed in range(REQUESTS):
        begun = documents[int(random.integers(len(documents)))]
        if seed and random.random() < 0.3:
            begun = found[int(random.integers(len(found)))][0]
        prompt = [*begun[: int(random.integers(1, len(begun) + 1))], *text(0, 30)]
        options = Options(
            Sampling(temperature=float(random.choice([0.0, 0.8])), seed=seed),
            max_tokens=int(random.integers(1, 30)),
            draft_tokens=[None, 0, 3][int(random.integers(3))],
            ignore_eos=True,
        )
        found.append((prompt[:330], options))
    return found


def alone(engine: Engine, asked: list[tuple[list[int], Options]]) -> list[list[int]]:
    answers = []
    for prompt, options in asked:
        request = engine.generate(prompt, options)
        request.run()
        answers.append(request.ids)
        engine.cache.clear()
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids="-".join)
def test_each_is_answered_as_if_alone(
    packages: Packages, model: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Everything pays, however small.
    for name in ("_MIN_SECONDS", "_MIN_READS"):
        monkeypatch.setattr(disk_tier, name, 0)
    monkeypatch.setattr(tensor_file, "_OPENING", 0)
    monkeypatch.setattr(tensor_file, "_BYTES_A_SECOND", 1e15)
    plain = load(packages(*model), threads=1, context=400, sequences=1)
    asked = requests(plain.steps.vocab)
    wanted = alone(plain, asked)
    state = plain.steps.state
    engine = load(
        packages(*model),
        threads=2,
        context=400,
        sequences=4,
        kv_memory=20 * state.page_bytes,
        checkpoint_memory=4 * state.slot_bytes,
        cache_dir=tmp_path,
        cache_size=16 * (state.slot_bytes + 4 * state.page_bytes),
    )
    random, live = np.random.default_rng(2), list[tuple[int, Handle]]()
    for number, (prompt, options) in enumerate(asked):
        live.append((number, engine.submit(prompt, options)))
        while len(live) > (0 if number == REQUESTS - 1 else int(random.integers(1, 7))):
            ended, request = live.pop(int(random.integers(len(live))))
            request.run()
            assert request.ids == wanted[ended], ended
    disk, stats = engine.disk, engine.cache.stats
    assert disk is not None
    disk.finish()
    assert disk.problem is None
    assert min(stats.hits, stats.tokens_found, stats.evictions, disk.read, disk.written) > 0
    assert sum(path.stat().st_size for path in tmp_path.glob("*/*")) <= 16 * (state.slot_bytes + 4 * state.page_bytes)
    engine.cache.clear()
    state = engine.steps.state
    assert (state.slots.free, state.pages.free) == (state.slots.size, state.pages.size)
