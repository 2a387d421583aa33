"""Block drafters on real graphs change no text, and draft the same after the same text, whatever came before.

Random drafters are hardly ever right, so known texts stand in for their drafts, with a wrong one now and then. Their
runs are real: each block has the bits of every other one after the same tokens, in all engines.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.models.packages import Packages
from support.requests.moved import PROMPTS, asked, moved_between
from support.requests.random_requests import Asked, requests_of
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.bench.replay import replaying
from trigraph.runtime.cache import disk_tier, tensor_file
from trigraph.runtime.execution.inputs import Sequences, Tokens
from trigraph.runtime.execution.results import BlockResult, DraftResult
from trigraph.runtime.execution.sessions import Binding
from trigraph.runtime.execution.steps import Run

# geometry, quantisation, keys and values, kind
MODELS = [
    ("trained", "Q8_0", "f16", "dflash2"),
    ("trained", "Q8_0", "f16", "dflash2-sliding"),
    ("tiny-dense", "Q4_K_M", "f16", "dspark-sliding"),
    ("tiny-moe", "Q4_K_M", "q8_0", "dflash-sliding"),
    ("tiny-next", "mixed", "f32", "dflash2"),
]
CONTEXT, COUNT = 200, 30
DRAFTED: list[dict[str, Any]] = [
    *[{"drafter": drafter, "draft_tokens": 7} for drafter in ("block", "mtp")] * 5,
    *[{}] * COUNT,
]
"""How the first requests draft; the policy chooses for the others."""
GREEDY = Options(Sampling(temperature=0), max_tokens=40, ignore_eos=True, draft_tokens=7, drafter="block")


class Blocks:
    """All blocks that engines draft, by the text before them."""

    def __init__(self) -> None:
        self.bits: dict[tuple[int, ...], tuple[bytes, bytes]] = {}
        self.repeated = 0

    def watched(self, engine: Engine) -> Engine:
        """The engine, whose rounds fail where a block has other bits than one before."""
        steps = weakref.proxy(engine.steps)  # which hold this function: they go with the engine
        draft = type(engine.steps).draft_block

        def drafted(sequences: Sequences, tokens: Tokens, run: Run = Binding.run) -> BlockResult:
            result = draft(steps, sequences, tokens, run)
            assert steps.block is not None
            for i, (sequence, token) in enumerate(zip(sequences, tokens, strict=True)):
                rows = slice(i * steps.block.block, (i + 1) * steps.block.block)
                text = *sequence.tokens, token
                bits = result.candidates[rows].tobytes(), result.edges[rows].tobytes()
                self.repeated += text in self.bits
                assert self.bits.setdefault(text, bits) == bits, f"another block after {len(text)} tokens"
            return result

        steps.draft_block = drafted
        return engine


def folder(packages: Packages, model: tuple[str, ...], *, drafter: bool = True) -> Path:
    geometry, quant, kv_type, kind = model
    return packages(geometry, quant, kv_type=kv_type, **({"drafter": kind} if drafter else {}))


@functools.cache
def plain(packages: Packages, model: tuple[str, ...]) -> tuple[list[Asked], list[list[int]]]:
    """Requests of all kinds, and the tokens that each gets alone, of a package without a drafter."""
    engine = load(folder(packages, model, drafter=False), threads=1, context=CONTEXT, sequences=1, speculation=False)
    requests = requests_of(engine.vocab, COUNT, seed=len(model[0]))
    requests.append(replace(requests[0], options=Options(Sampling(seed=8), ignore_eos=True)))  # until the context ends
    answers = []
    for one in requests:
        engine.cache.clear()
        request = engine.generate(one.prompt, replace(one.options, draft_tokens=0))
        request.run()
        answers.append(request.ids)
    engine.close()
    return requests, answers


def drafting(engine: Engine, texts: list[list[int]]) -> Engine:
    """The engine, whose drafts are known texts, each token wrong now and then."""
    engine._driver.scheduler.__dict__["executor"] = replaying(engine.executor, texts, 0.8)
    return engine


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids="-".join)
def test_requests_get_the_texts_that_they_get_without(
    packages: Packages, model: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy, sampled, penalised and constrained ones, in one batch, with few pages, twice: from the cache at last.

    Some rounds are drafted by the MTP head, others by the block drafter.
    """
    requests, answers = plain(packages, model)
    package, blocks = folder(packages, model), Blocks()
    state = load(package, threads=1, context=CONTEXT, sequences=1).steps.state
    pages = 3 * state.limits.pages * state.page_bytes
    engine = load(package, threads=1, context=CONTEXT, sequences=4, kv_memory=pages)
    texts = [[*one.prompt, *answer] for one, answer in zip(requests, answers, strict=True)]
    drafting(blocks.watched(engine), texts)
    draft, accepted = engine.steps.draft, 0
    by_head: list[object] = []

    def counted(*given: Any) -> DraftResult:
        by_head.append(given)
        return draft(*given)

    monkeypatch.setattr(engine.steps, "draft", counted)
    for _ in range(2):
        handles = [
            engine.submit(one.prompt, replace(one.options, **forced), priority=one.priority)
            for one, forced in zip(requests, DRAFTED, strict=False)
        ]
        for handle, answer in zip(handles, answers, strict=True):
            handle.result()
            assert handle.ids == answer
            accepted += handle.stats.accepted
    engine.close()
    assert accepted > COUNT
    assert by_head
    assert blocks.repeated > 0


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids="-".join)
def test_a_block_is_the_same_wherever_its_text_comes_from(
    packages: Packages, model: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prefix cache, a session file, a folder on disk, other engines and layouts; a prompt of more than a page."""
    for name in ("_MIN_SECONDS", "_MIN_READS"):
        monkeypatch.setattr(disk_tier, name, 0)
    monkeypatch.setattr(tensor_file, "_OPENING", 0)
    monkeypatch.setattr(tensor_file, "_BYTES_A_SECOND", 1e15)
    package, blocks = folder(packages, model), Blocks()
    settings = dict(threads=1, context=CONTEXT, sequences=2)
    first = blocks.watched(load(package, cache_dir=tmp_path / "disk", **settings))  # type: ignore[arg-type]
    prompt = [7 * i % first.vocab for i in range(100)]
    assert first.steps.state.ring == (64 if model[-1].endswith("sliding") else 0)  # the text is longer
    whole = first.generate(prompt, GREEDY)
    whole.run()
    drafted = len(blocks.bits)
    assert drafted > 20
    begun, rest = replace(GREEDY, max_tokens=20), replace(GREEDY, max_tokens=20)

    def halves(engine: Engine, cache: Path | None = None) -> None:
        """The same text in two requests; the second one finds what the first one left."""
        before = blocks.repeated
        one = engine.generate(prompt, begun, cache)
        one.run()
        two = engine.generate([*prompt, *one.ids], rest, cache)
        two.run()
        assert [*one.ids, *two.ids] == whole.ids
        assert two.stats.reused_tokens >= len(prompt)
        assert blocks.repeated > before + 5

    halves(first)
    first.disk.finish()  # type: ignore[union-attr]
    second = blocks.watched(load(package, threads=2, context=CONTEXT, sequences=2, chunk=13))
    halves(second, tmp_path / "session")
    second.cache.clear()
    third = blocks.watched(load(package, cache_dir=tmp_path / "disk", **settings))  # type: ignore[arg-type]
    again = third.generate([*prompt, *whole.ids[:20]], rest)
    again.run()
    assert again.ids == whole.ids[20:]
    assert third.disk is not None and third.disk.read > 0
    fourth = blocks.watched(load(package, repack="on", **settings))  # type: ignore[arg-type]
    resumed = fourth.generate([*prompt, *whole.ids[:20]], rest, tmp_path / "session")
    resumed.run()
    assert resumed.ids == whole.ids[20:]
    assert resumed.stats.reused_tokens > len(prompt)
    for engine in (first, second, third, fourth):
        engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids="-".join)
def test_requests_move_between_engines(packages: Packages, model: tuple[str, ...]) -> None:
    package, blocks = folder(packages, model), Blocks()
    engines = tuple(blocks.watched(load(package, threads=1, context=CONTEXT, sequences=2)) for _ in range(2))
    plain = load(folder(packages, model, drafter=False), threads=1, context=CONTEXT, speculation=False)
    for name, wanted in asked(40).items():
        options = replace(wanted, draft_tokens=None if wanted.draft_tokens == 0 else 3)
        whole = plain.generate(PROMPTS[0], options)
        whole.run()
        assert moved_between((engines[0], engines[1]), PROMPTS[0], options, 7).request.ids == whole.ids, name
    assert blocks.bits
    for engine in (*engines, plain):
        engine.close()


@pytest.mark.slow
def test_receipts_verify_without_the_drafts(packages: Packages) -> None:
    package = folder(packages, MODELS[0])
    with load(package, threads=1, context=CONTEXT) as engine:
        request = engine.generate([5, 6, 7], GREEDY, receipt=True)
        request.run()
        assert request.stats.drafted > 20
        receipt = engine.receipt(request)
    with load(package, threads=1, context=CONTEXT, speculation=False) as other:
        assert other.verify(receipt).equal


@pytest.mark.slow
def test_a_drafter_of_another_package_is_another_model(packages: Packages, tmp_path: Path) -> None:
    """Its keys and values are part of the state, which another package does not have."""
    model = MODELS[0]
    engine, other = load(folder(packages, model)), load(folder(packages, model, drafter=False))
    engine.generate([1, 2, 3], GREEDY, tmp_path / "session").run()
    files = r"\(files of draft_model and mtp count as weights\)"
    with pytest.raises(TrigraphError, match=f"was saved with the model .*{files}; load that one"):
        other.generate([1, 2, 3], replace(GREEDY, drafter="auto"), tmp_path / "session").run()
    request = engine.generate([1, 2, 3], GREEDY, receipt=True)
    request.run()
    with pytest.raises(TrigraphError, match=f"the receipt is of model .*{files}"):
        other.verify(engine.receipt(request))


@pytest.mark.slow
def test_without_speculation_there_is_no_draft_graph(packages: Packages) -> None:
    engine = load(folder(packages, MODELS[0]), context=CONTEXT, speculation=False)
    assert engine.steps.block is None
    whole = engine.generate([1, 2, 3], GREEDY)
    whole.run()
    assert whole.stats.drafted == 0
    with pytest.raises(TrigraphError, match="no block drafter, or was loaded without speculation"):
        engine.steps.draft_block([engine.steps.new_sequence()], [1])


@pytest.mark.slow
def test_rings_grow_with_the_rows_of_a_verify(packages: Packages) -> None:
    """And with n-grams that draft more than a block has, blocks are the same."""
    package, blocks, texts = folder(packages, MODELS[1]), Blocks(), []
    for pending, ring in ((None, 64), (70, 128)):
        engine = blocks.watched(load(package, threads=1, context=CONTEXT, max_pending=pending))
        assert engine.steps.state.ring == ring
        for drafts in (7, 0 if pending is None else 60):
            request = engine.generate([*range(20)] * 4, replace(GREEDY, draft_tokens=drafts, drafter="auto"))
            request.run()
            texts.append(request.ids)
        engine.close()
    assert texts == texts[:1] * 4
    assert blocks.repeated > 0
