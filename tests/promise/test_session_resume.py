"""Sequences resume from session files to the bit, in other engines too."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from support.marks import slow_after
from support.models.packages import Packages
from support.requests.sessions import resume, save
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.state.sequence import Sequence

# geometry, quantisation
MODELS = [("trained", "Q8_0"), ("tiny-moe", "Q4_K_M"), ("tiny-next", "Q4_K_M"), ("tiny-streams", "Q4_K_M")]


def rounds(engine: Engine, sequence: Sequence, count: int, drafts: int) -> list[bytes]:
    """The bits of rows that greedy decoding keeps, from token 1 on; drafts and what they become are part of it."""
    steps, token, found = engine.steps, 1, []
    for _ in range(count):
        proposed = []
        if drafts:
            guess = steps.draft([sequence], [token])
            found.append(guess.probability.tobytes())
            proposed = [int(guess.tokens[0])]
            for _ in range(drafts - 1):
                guess = steps.draft_more([sequence], guess.tokens.tolist(), guess.hidden)
                proposed.append(int(guess.tokens[0]))
        step = steps.verify([sequence], [[token, *proposed]])
        kept = 0
        for row, draft in enumerate([*proposed, None]):
            found.append(step.logits[row].tobytes())
            token, kept = int(step.tokens[row]), kept + 1
            if token != draft:
                break
        steps.keep(sequence, kept)
    return found


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("model", slow_after(1, MODELS), ids="-".join)
@pytest.mark.parametrize("moment", ["prompt", "accepted", "pending"])
def test_a_sequence_resumes_with_the_same_bits(
    packages: Packages, model: tuple[str, str], moment: str, drafts: int, tmp_path: Path
) -> None:
    engine = load(packages(*model), threads=1, context=300, sequences=2)
    steps = engine.steps
    sequence = steps.new_sequence()
    steps.prefill([sequence], [[int(t) for t in np.random.default_rng(1).integers(0, steps.vocab, 125)]])
    if moment != "prompt":
        rounds(engine, sequence, 3, drafts)
        steps.verify([sequence], [[5, 6, 7, 8]])
    if moment == "accepted":
        steps.keep(sequence, 3)
        assert sequence.to_commit == 3
    save(tmp_path / "session", steps, sequence, model=engine.identity)

    if moment == "pending":  # is not saved
        steps.keep(sequence, 0)
    other = load(packages(*model), threads=2, context=600, sequences=1)
    (copy,) = resume(tmp_path / "session", other.steps, other.identity)
    assert copy.tokens == sequence.tokens
    assert rounds(other, copy, 6, drafts) == rounds(engine, sequence, 6, drafts)
    assert copy.tokens == sequence.tokens


@pytest.mark.parametrize("saver", [True, False])
def test_programs_with_and_without_speculation_share_a_session(packages: Packages, saver: bool, tmp_path: Path) -> None:
    """One that cannot draft keeps no KV of the head for one that can: drafts get worse, the text stays."""
    folder = packages("trained", "Q8_0")
    first = load(folder, context=300, sequences=1, speculation=saver)
    second = load(folder, context=300, sequences=1, speculation=not saver)
    sequence = first.steps.new_sequence()
    first.steps.prefill([sequence], [first.tokenizer.encode("And it came to pass")])
    rounds(first, sequence, 70, 0)
    save(tmp_path / "session", first.steps, sequence, model=first.identity)
    (copy,) = resume(tmp_path / "session", second.steps, second.identity)
    rounds(first, sequence, 20, 2 if saver else 0)
    rounds(second, copy, 20, 0 if saver else 2)
    shorter = min(sequence.length, copy.length)
    assert sequence.tokens[:shorter] == copy.tokens[:shorter]


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0), Sampling(temperature=1.0, seed=5)], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize("speculate", [False, True])
def test_a_completion_goes_on_as_if_it_had_not_been_saved(
    packages: Packages, sampling: Sampling, speculate: bool, tmp_path: Path
) -> None:
    """20 tokens, a file, and 20 tokens more are the 40 tokens of one run."""
    engine = load(packages("trained", "Q8_0"), context=300, sequences=1)
    prompt = engine.tokenizer.encode("And the king said unto")
    # An n-gram of drafts at every round, so that what is accepted waits at the end.
    options = Options(sampling, max_tokens=40, ignore_eos=True, draft_tokens=4 if speculate else 0)
    whole = engine.generate(prompt, options)
    whole.run()
    first = engine.generate(prompt, dataclasses.replace(options, max_tokens=20), cache=tmp_path / "cache")
    first.run()
    other = load(packages("trained", "Q8_0"), context=300, sequences=1, speculation=speculate)
    second = other.generate(
        [*prompt, *first.ids], dataclasses.replace(options, max_tokens=20), cache=tmp_path / "cache"
    )
    second.run()
    assert second.stats.reused_tokens == len(prompt) + 19
    assert first.ids + second.ids == whole.ids
