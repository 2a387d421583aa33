"""Bookkeeping of slots, pages, pending tokens and MTP entries, against a model that checks each step."""

import numpy as np
import pytest

from support.fakes.steps import VOCAB, check, free, make, text
from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.exchange import Exchange


@pytest.mark.parametrize("chunk", [1, 3, 5, 64])
def test_prefill_takes_a_prompt_in_chunks(chunk: int) -> None:
    model = make()
    steps = model.steps(chunk=chunk)
    sequence = steps.new_sequence()
    prompt = text(17)
    result = steps.prefill([sequence], [prompt])
    np.testing.assert_array_equal(result.logits[0], model.next_logits(tuple(prompt)))
    assert max(max(lengths) for _, lengths in model.runs) == min(chunk, 17)
    check(model, steps, sequence, prompt)


def test_prefill_of_several_sequences_gives_rows_in_their_order() -> None:
    model = make()
    steps = model.steps(chunk=6)
    prompts = [text(13, 1), text(2, 2), text(4, 3), text(6, 4)]
    sequences = [steps.new_sequence() for _ in prompts]
    result = steps.prefill(sequences, prompts)
    for i, prompt in enumerate(prompts):
        np.testing.assert_array_equal(result.logits[i], model.next_logits(tuple(prompt)))
    assert sum(sum(lengths) for _, lengths in model.runs) == 25
    assert all(sum(lengths) <= 6 for _, lengths in model.runs)


@pytest.mark.slow
@pytest.mark.parametrize("draft", [True, False])
def test_random_histories_of_drafts_verifies_and_prefills(draft: bool) -> None:
    model = make(draft)
    steps = model.steps(context=400, chunk=5)
    random = np.random.default_rng(5)
    sequences = [steps.new_sequence() for _ in range(3)]
    texts = [text(4, seed) for seed in range(3)]
    steps.prefill(sequences, texts)
    for round_number in range(200):
        chosen = random.permutation(3)[: random.integers(1, 4)]
        batch = [sequences[i] for i in chosen]
        if max(seq.length for seq in batch) > 380:
            break
        if random.random() < 0.1:
            new = [text(int(random.integers(1, 9)), round_number) for _ in batch]
            steps.prefill(batch, new)
            for i, tokens in zip(chosen, new, strict=True):
                texts[i] += tokens
            continue
        new = [text(int(random.integers(1, 9)), round_number + 1000 * i) for i in range(len(batch))]
        if draft and random.random() < 0.7:
            guess = steps.draft(batch, [tokens[0] for tokens in new])
            for _ in range(int(random.integers(0, 4))):
                guess = steps.draft_more(batch, guess.tokens.tolist(), guess.hidden)
        result = steps.verify(batch, new)
        row = 0
        for i, sequence, tokens in zip(chosen, batch, new, strict=True):
            for j in range(len(tokens)):
                np.testing.assert_array_equal(result.logits[row], model.next_logits((*texts[i], *tokens[: j + 1])))
                row += 1
            kept = int(random.integers(0, len(tokens) + 1))
            steps.keep(sequence, kept)
            texts[i] += tokens[:kept]
    for sequence, tokens in zip(sequences, texts, strict=True):
        check(model, steps, sequence, tokens)


def test_verify_from_an_empty_text() -> None:
    model = make()
    steps = model.steps()
    sequence = steps.new_sequence()
    steps.verify([sequence], [[1, 2, 3]])
    steps.keep(sequence, 0)
    steps.draft([sequence], [4])
    steps.verify([sequence], [[4, 5]])
    steps.keep(sequence, 2)
    check(model, steps, sequence, [4, 5])


def test_tokens_that_nobody_accepts_are_rejected() -> None:
    model = make()
    steps = model.steps()
    sequence = steps.new_sequence()
    steps.prefill([sequence], [[1, 2]])
    steps.verify([sequence], [[3, 4]])
    steps.prefill([sequence], [[5]])
    check(model, steps, sequence, [1, 2, 5])


def test_rounds_without_drafts_are_caught_up_later() -> None:
    model = make()
    steps = model.steps(chunk=8)
    sequence = steps.new_sequence()
    tokens = text(3)
    steps.prefill([sequence], [tokens])
    for i in range(20):
        steps.verify([sequence], [[i % VOCAB]])
        steps.keep(sequence, 1)
        tokens.append(i % VOCAB)
    model.runs.clear()
    steps.draft([sequence], [0])
    assert model.runs == [("draft", [8]), ("draft", [8]), ("draft", [5])]
    check(model, steps, sequence, tokens)


@pytest.mark.parametrize("length", [3, 4, 9])
@pytest.mark.parametrize("kept", [0, 2, 3])
def test_forks_go_their_own_ways(length: int, kept: int) -> None:
    """Fork between verify and accept: each side keeps what it likes, alone or in one step."""
    model = make()
    steps = model.steps()
    prompt = text(length)
    parent = steps.new_sequence()
    before = free(steps)
    steps.prefill([parent], [prompt])
    steps.verify([parent], [[1, 2, 3]])
    child = steps.fork(parent)
    steps.keep(parent, kept)
    steps.keep(child, 3 - kept)
    texts = [prompt + [1, 2, 3][:kept], prompt + [1, 2, 3][: 3 - kept]]
    family = [parent, child]
    steps.draft(family, [7, 8])
    result = steps.verify(family, [[7, 9], [8]])
    expected = [(*texts[0], 7), (*texts[0], 7, 9), (*texts[1], 8)]
    for row, history in enumerate(expected):
        np.testing.assert_array_equal(result.logits[row], model.next_logits(history))
    for sequence, tokens in zip(family, texts, strict=True):
        steps.keep(sequence, 1)
        check(model, steps, sequence, [*tokens, 7 if sequence is parent else 8])
    for sequence in family:
        steps.release(sequence)
    assert free(steps) == (before[0] + 1, before[1])


def test_a_snapshot_outlives_its_sequence() -> None:
    model = make()
    steps = model.steps(context=40)
    sequence = steps.new_sequence()
    prompt = text(18)
    steps.prefill([sequence], [prompt])
    snapshot = steps.fork(sequence)
    # Four full pages are shared, the fifth is copied.
    assert steps.state.pages.size - steps.state.pages.free == 6
    steps.prefill([sequence], [text(20, 1)])
    steps.release(sequence)
    steps.draft([snapshot], [3])
    check(model, steps, snapshot, prompt)


def test_a_failed_step_ends_its_sequences_only() -> None:
    model = make()
    steps = model.steps()
    a, b = steps.new_sequence(), steps.new_sequence()
    steps.prefill([a, b], [[1, 2], [3]])
    c = steps.fork(a)
    before = free(steps)
    model.fail = True
    with pytest.raises(RuntimeError):
        steps.verify([a], [[5]])
    model.fail = False
    assert free(steps)[0] == before[0]
    with pytest.raises(TrigraphError, match="a step of it failed"):
        steps.verify([a], [[5]])
    check(model, steps, b, [3])
    check(model, steps, c, [1, 2])


def test_what_callers_may_not_do() -> None:
    model = make(draft=False)
    steps = model.steps(context=10, sequences=1)
    sequence = steps.new_sequence()
    for call, message in (
        (lambda: steps.prefill([sequence], [[]]), "the prompt is empty"),
        (lambda: steps.prefill([sequence], [text(11)]), "reaches 11 tokens and the context holds 10"),
        (lambda: steps.prefill([sequence], [[0, VOCAB]]), "token ids must be from 0 to 10"),
        (lambda: steps.verify([sequence], [[]]), "takes 1 to 8 tokens"),
        (lambda: steps.verify([sequence], [[1] * 9]), "takes 1 to 8 tokens"),
        (lambda: steps.keep(sequence, 1), "0 are pending"),
        (lambda: steps.draft([sequence], [1]), "it cannot draft"),
        (lambda: model.steps(chunk=0), "chunk is 0"),
    ):
        with pytest.raises(TrigraphError, match=message):
            call()
    steps.prefill([sequence], [text(10)])
    with pytest.raises(TrigraphError, match="the context holds 10"):
        steps.verify([sequence], [[1]])
    assert sequence.tokens == text(10)
    with pytest.raises(TrigraphError, match="pages"):
        steps.fork(sequence)


def test_pieces_of_prompts_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host waits where a prompt ends, and once for each chunk."""
    model, waits = make(), []
    steps = model.steps(chunk=8)
    monkeypatch.setattr(steps._prefill, "pieces", 4)
    monkeypatch.setattr(Exchange, "receive", lambda _: waits.append(sum(sum(sizes) for _, sizes in model.runs)))
    sequences, prompts = [steps.new_sequence() for _ in range(3)], [text(21), text(3, 1), text(9, 2)]
    result = steps.prefill(sequences, prompts)
    assert max(sum(sizes) for _, sizes in model.runs) == 2
    assert waits == [8, 16, 22, 24, 32, 33]
    for sequence, prompt, logits in zip(sequences, prompts, result.logits, strict=True):
        np.testing.assert_array_equal(logits, model.next_logits(tuple(prompt)))
        check(model, steps, sequence, prompt)


@pytest.mark.parametrize("failing", [2, 4, 5])
def test_a_piece_that_fails(monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """Before the host has waited for those before, or behind: nobody goes on from there, and others do."""
    model = make()
    steps = model.steps(chunk=8)
    monkeypatch.setattr(steps._prefill, "pieces", 4)
    failed, other = steps.new_sequence(), steps.new_sequence()
    steps.prefill([other], [text(5)])
    before = len(model.runs)

    def watch(graph: str, tokens: list[list[int]]) -> None:
        if len(model.runs) == before + failing:
            raise RuntimeError("a step failed")

    model.watch = watch
    with pytest.raises(RuntimeError):
        steps.prefill([failed], [text(20)])
    with pytest.raises(TrigraphError, match="a step of it failed"):
        steps.prefill([failed], [text(2)])
    steps.release(failed)
    check(model, steps, other, text(5))
