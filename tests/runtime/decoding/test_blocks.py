"""Block drafters: one run makes all drafts of a round, and the host walks them as the request's sampler would."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from support.fakes.blocks import BLOCK, KINDS, FakeBlocks, drafter_config
from support.fakes.device import device_executor
from support.fakes.engine import GREEDY, VOCAB, engine_of, scripted
from support.fakes.model import FakeModel, History, chaotic
from support.fakes.rounds import LOGITS, alone
from support.fakes.step import FakeStep
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Sampling
from trigraph.runtime.drafting.choice import Candidates, Governor
from trigraph.runtime.drafting.costs import Costs
from trigraph.runtime.execution.executor import Executor, SequencePlan
from trigraph.runtime.execution.results import BlockResult
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.sampling.sampling import Sampler

SAMPLINGS = {
    "greedy": GREEDY,
    "sampled": Sampling(temperature=0.8, seed=4, top_k=3),
    "penalised": Sampling(temperature=0.7, repeat_penalty=1.3, seed=1, logit_bias=((5, 2.0), (7, -np.inf))),
}


def blocks(
    kind: str, logits: Callable[[History], np.ndarray], wrong: int = 0, block: int = BLOCK, context: int = 64
) -> tuple[Engine, FakeModel]:
    """An engine with a block drafter, which is wrong after one history in `wrong`."""

    def is_wrong(history: History) -> bool:
        return bool(wrong) and hash(history) % wrong == 0

    return engine_of(logits, blocks=FakeBlocks(logits, drafter_config(kind, block), is_wrong), context=context)


def run(engine: Engine, prompt: list[int], sampling: Sampling, tokens: int, **others: object) -> Handle:
    options = Options(sampling, max_tokens=tokens, ignore_eos=True, **others)  # type: ignore[arg-type]
    handle = engine.generate(prompt, options)
    handle.run()
    return handle


@pytest.mark.parametrize("kind", KINDS)
def test_all_drafts_of_a_round_come_from_one_run(kind: str) -> None:
    engine, model = blocks(kind, scripted(b"0123456789", 3))
    most = BLOCK if kind == "dspark" else BLOCK - 1
    handle = run(engine, [1, 2, 3], GREEDY, 1 + 3 * (most + 1), drafter="block", draft_tokens=most)
    stats = handle.stats
    assert handle.text == ("0123456789" * 3)[: stats.tokens]
    assert (stats.rounds, stats.drafted, stats.accepted) == (3, 3 * most, 3 * most)
    assert stats.tokens_per_round == most + 1
    steps = [(graph, rows) for graph, rows in model.runs if graph != "prefill"]
    assert steps == [("block", [BLOCK]), ("verify", [most + 1])] * 3


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_right_or_wrong_change_no_text(kind: str, sampling: str) -> None:
    expected = alone([5, 6, 7], Options(SAMPLINGS[sampling], max_tokens=40, ignore_eos=True))
    accepted = []
    for wrong, tokens in ((0, 2), (0, None), (2, 3), (1, 3)):
        engine, _ = blocks(kind, LOGITS, wrong)
        handle = run(engine, [5, 6, 7], SAMPLINGS[sampling], 40, draft_tokens=tokens)
        assert handle.ids == expected
        accepted.append(handle.stats.accepted)
    assert accepted[0] > accepted[2] >= accepted[3]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_is_drawn_as_its_token_is(kind: str, sampling: str) -> None:
    """With the numbers of its position, so it is right wherever the filters let through none but its candidates."""
    engine, _ = blocks(kind, LOGITS)
    stats = run(engine, [5, 6, 7], replace(SAMPLINGS[sampling], top_k=3), 40, draft_tokens=1).stats
    wrong = stats.drafted - stats.accepted
    assert stats.drafted > 15
    assert wrong == 0 if sampling != "penalised" else wrong < stats.accepted  # penalties may let others through


def test_a_walk_follows_the_candidates_that_were_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores of a row are those after what was taken in the row before; the known token's row drafts nothing."""
    steps = blocks("dflash2", LOGITS)[0].steps
    candidates = np.array([[0, 0, 0], [10, 11, 12], [20, 21, 22], [30, 31, 32]])
    edges = np.zeros((4, 3, 3), np.float32)
    edges[1, :, 2] = edges[2, 2, 1] = edges[2, 0, 0] = edges[3, 1, 0] = edges[3, 2, 2] = 1
    sequence = steps.new_sequence()
    monkeypatch.setattr(steps, "draft_block", lambda sequences, tokens: BlockResult(candidates, edges))
    part = SequencePlan(sequence, [1], 3, guess=lambda *asked: 0, block=True)
    drafts, runs = Executor(steps).draft([part._replace(drafts=0), part])
    assert drafts == [[], [12, 21, 30]]
    assert [(run.rows, run.sequences) for run in runs] == [(4, 1)]
    assert Executor(steps).draft([part._replace(drafts=2)])[0] == [[12, 21]]
    assert Executor(steps).draft([part._replace(floor=0.7)])[0] == [[]]


def test_several_requests_share_a_run() -> None:
    engine, model = blocks("dflash2", LOGITS, wrong=3)
    prompts = [[1, 2, 3], [9] * 11, [4], [5, 6, 7, 8, 9]]
    options = [
        Options(Sampling(temperature=0.9, seed=seed), max_tokens=20 + seed, ignore_eos=True, draft_tokens=3)
        for seed in range(len(prompts))
    ]
    handles = [engine.submit(prompt, one) for prompt, one in zip(prompts, options, strict=True)]
    for handle, prompt, one in zip(handles, prompts, options, strict=True):
        handle.result()
        assert handle.ids == alone(prompt, one)
    assert max(len(rows) for graph, rows in model.runs if graph == "block") > 1
    assert all(rows == [BLOCK] * len(rows) for graph, rows in model.runs if graph == "block")


def test_no_block_reaches_beyond_the_context() -> None:
    for length in range(10, 20):  # of the prompt, so that rounds end everywhere
        engine, model = blocks("dflash2", LOGITS, wrong=1, block=6, context=40)
        handle = run(engine, [1] * length, GREEDY, 100, drafter="block", draft_tokens=5)
        assert handle.ids == alone([1] * length, Options(GREEDY, ignore_eos=True), context=40)
        assert handle.stats.finish_reason == "context"
        drafts = sum(graph == "block" for graph, _ in model.runs)
        assert 0 < drafts < handle.stats.rounds
    sequence = engine.steps.new_sequence()
    engine.steps.prefill([sequence], [[1] * 35])
    with pytest.raises(TrigraphError, match="the draft reaches 41 tokens and the context holds 40"):
        engine.steps.draft_block([sequence], [1])


def test_a_block_of_more_rows_than_a_verify_has() -> None:
    """They need pages too, and no draft beyond what is verified is walked to."""
    engine, model = blocks("dflash2", LOGITS, block=16, context=64)
    prompt = [1, 2, 3]
    handle = run(engine, prompt, GREEDY, 30, drafter="block", draft_tokens=7)
    assert handle.ids == alone(prompt, Options(GREEDY, max_tokens=30, ignore_eos=True))
    assert max(rows[0] for graph, rows in model.runs if graph == "verify") == 8
    assert {rows[0] for graph, rows in model.runs if graph == "block"} == {16}


def test_who_drafts() -> None:
    engine, model = blocks("dflash2", scripted(b"abcde", 1), context=300)
    for drafter, by_block in (("block", True), ("ngram", False), ("mtp", False)):
        model.runs.clear()
        handle = run(engine, [1], GREEDY, 60, drafter=drafter, draft_tokens=2)
        assert any(graph == "block" for graph, _ in model.runs) == by_block
        if drafter == "mtp":
            assert handle.stats.speculation == "off: the model has no MTP head"
    with pytest.raises(TrigraphError, match="draft_tokens is 4; a round drafts at most 3"):
        run(engine, [1], GREEDY, 60, draft_tokens=4)
    plain, _ = engine_of(scripted(b"abcde", 1))
    headless, _ = engine_of(scripted(b"abcde", 1), draft=False)
    for engine in (plain, headless):
        assert run(engine, [1], GREEDY, 5, drafter="block").stats.speculation == "off: the package has no block drafter"
    assert run(headless, [1], GREEDY, 5, drafter="mtp").stats.speculation == "off: the model has no MTP head"


def test_unlikely_drafts_end_a_walk() -> None:
    def logits(history: History) -> np.ndarray:
        row = np.zeros(VOCAB, np.float32)
        row[len(history) % 256] = 9 if len(history) % 4 else 0.1  # one of many, now and then
        return row

    engine, model = blocks("dflash", logits, context=64)
    run(engine, [1, 2, 3], GREEDY, 40, drafter="block", draft_tokens=3, draft_p_min=0.5)
    verified = [rows[0] for graph, rows in model.runs if graph == "verify"]
    assert 1 in verified or 2 in verified
    assert max(verified) == 4


def test_a_device_has_the_host_walk() -> None:
    engine, _ = blocks("dflash2", LOGITS, wrong=3)
    engine._driver.scheduler.__dict__["executor"] = device_executor(engine.steps)
    sampling = Sampling(temperature=0.9, top_k=5, seed=2)
    handle = run(engine, [5, 6, 7], sampling, 40, draft_tokens=3)
    assert handle.ids == alone([5, 6, 7], Options(sampling, max_tokens=40, ignore_eos=True))
    assert handle.stats.accepted


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_guess_among_all_tokens_is_the_guess(sampling: str) -> None:
    logits, options = chaotic(50), SAMPLINGS[sampling]
    for position in range(40):
        row, ids = logits((position,)), np.random.default_rng(position).permutation(50)
        step = FakeStep(np.array([row.argmax()]), row[None])
        place = Sampler(options, [1, 5, 7]).guess_among(ids, row[ids], position)
        assert ids[place] == Sampler(options, [1, 5, 7]).guess(step, 0, position)
    numbers = np.full(3, np.nan, np.float32)
    assert 0 <= Sampler(options, []).guess_among(np.array([4, 2, 9]), numbers, 0) < 3


def test_a_block_costs_the_same_for_one_draft_and_for_all() -> None:
    """What a run of its rows takes is worth paying for seven drafts, and not for one."""
    governor = Governor(costs := Costs())
    for rows in range(8, 0, -1):
        for _ in range(2):
            costs.verify.observe(rows, 1, 1.0 + 0.02 * rows)
    for _ in range(2):
        costs.block.observe(8, 1, 0.9)
    chances = [0.8**i for i in range(1, 8)]
    assert governor.choose([Candidates(chances, block=8)]) == [7]
    assert Governor(costs).choose([Candidates(chances[:1], block=8)]) == [0]
    assert Governor(costs).choose([Candidates(chances)]) != [7]  # of a head that takes as long seven times


def both(wrong_heads: int, wrong_blocks: int, context: int = 300) -> tuple[Engine, FakeModel]:
    """An engine with an MTP head and a block drafter; each is wrong after one history in so many, 0 for never."""

    def fails(history: History, one_in: int) -> bool:
        return bool(one_in) and hash(history) % one_in == 0

    def guess(history: History) -> tuple[int, float]:
        return (int(LOGITS(history).argmax()) + fails(history, wrong_heads)) % VOCAB, 0.9

    drafter = FakeBlocks(LOGITS, drafter_config(), lambda history: fails(history, wrong_blocks))
    return engine_of(LOGITS, blocks=drafter, guess=guess, context=context)


def test_the_drafter_that_is_right_more_often_drafts() -> None:
    """Each is soon found out, whichever is asked first, and the text is that of neither."""
    expected = alone([5, 6, 7], Options(GREEDY, max_tokens=250, ignore_eos=True), context=300)
    for wrong_heads, wrong_blocks, better in ((1, 0, "block"), (0, 1, "draft")):
        engine, model = both(wrong_heads, wrong_blocks)
        assert run(engine, [5, 6, 7], GREEDY, 250, draft_tokens=3).ids == expected
        graphs = Counter(graph for graph, _ in model.runs if graph in ("draft", "block"))
        assert set(graphs) == {"draft", "block"}
        rounds = graphs["draft"] // 3, graphs["block"]  # a run of the head makes one draft
        assert rounds[better == "block"] > 8 * rounds[better != "block"]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_two_drafters_change_no_text(sampling: str) -> None:
    """Requests that share rounds name one of them, or leave the choice to the policy."""
    engine, model = both(3, 2)
    asked = [
        Options(SAMPLINGS[sampling], max_tokens=60 + i, ignore_eos=True, drafter=drafter, draft_tokens=tokens)
        for i, (drafter, tokens) in enumerate([("auto", None), ("mtp", 3), ("block", 2), ("auto", 3)])
    ]
    handles = [engine.submit([5, 6, 7 + i], options) for i, options in enumerate(asked)]
    for i, (handle, options) in enumerate(zip(handles, asked, strict=True)):
        handle.result()
        assert handle.ids == alone([5, 6, 7 + i], options, context=300)
    assert {"draft", "block"} <= {graph for graph, _ in model.runs}


def test_each_drafter_costs_what_its_own_runs_took() -> None:
    costs = Costs()
    for rows in range(16, 0, -1):
        for sequences in (1, 2):
            for _ in range(2):
                costs.verify.observe(rows, sequences, 1.0 + 0.02 * rows)
    for _ in range(2):
        costs.draft.observe(1, 1, 0.3)
        costs.block.observe(8, 1, 0.9)
    chances = [0.9**i for i in range(1, 8)]
    governor = Governor(costs)
    by_head, by_block = Candidates(chances[:3]), Candidates(chances, block=8)
    assert governor.choose([by_block]) == [7]
    assert Governor(costs).choose([by_head])[0] > 0
    assert sum(Governor(costs).choose([by_head, Candidates([0.05], block=8)])[1:]) == 0
    assert governor.cost.block == pytest.approx(0.9 * governor.cost.draft / 0.3, rel=0.2)
