"""The decoding loop: requests that share steps are decoded as if each were alone."""

from collections.abc import Callable

import numpy as np
import pytest

from support.fakes.device import FakeSampler, device_executor
from support.fakes.engine import END, GREEDY, METADATA
from support.fakes.model import FakeModel, chaotic, mostly_right
from support.models.packages import Packages
from support.texts.prompts import PROMPTS
from trigraph.models.tokenizer import tokenizer_json
from trigraph.runtime import Options, load
from trigraph.runtime.drafting.acceptance import Acceptance
from trigraph.runtime.drafting.choice import Governor
from trigraph.runtime.execution.device_executor import DeviceExecutor
from trigraph.runtime.execution.executor import Executor
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.requests.completion import Completion
from trigraph.runtime.requests.draft_length import DraftLength
from trigraph.runtime.requests.request import Request
from trigraph.runtime.sampling.sampling import Sampler, Sampling
from trigraph.runtime.scheduler.speculation import decode, decode_round
from trigraph.runtime.text.tokenizer import Tokenizer

VOCAB = 23
EXECUTORS = {"host": Executor, "device": device_executor}
Maker = Callable[[Steps], Executor]


@pytest.fixture(params=EXECUTORS)
def executor_of(request: pytest.FixtureRequest) -> Maker:
    """Makes the executor of some steps."""
    maker: Maker = EXECUTORS[request.param]
    return maker


class Limit(Completion):
    """A completion of so many tokens."""

    def __init__(self, limit: int, floor: float | None = None, tokenizer: Tokenizer | None = None) -> None:
        options = Options(GREEDY, max_tokens=limit, ignore_eos=True, draft_p_min=floor)
        super().__init__([], options, tokenizer or Tokenizer(tokenizer_json(METADATA), [END]), 1000)

    def push(self, token: int) -> bool:
        assert not self.finished, "a token leaked past the end"
        return super().push(token)


def model() -> FakeModel:
    logits = chaotic(VOCAB)
    return FakeModel(VOCAB, logits, mostly_right(logits))


def request(steps: Steps, number: int) -> tuple[Request, Limit]:
    """Running `number` of a mixed crowd: its own prompt, sampling, draft length, floor and end."""
    prompt = [int(token) for token in np.random.default_rng(number).integers(0, VOCAB, 1 + 3 * number)]
    sampling = Sampling(temperature=0 if number % 2 else 0.9, seed=number, repeat_penalty=1.2 if number % 3 else 1.0)
    sampler, completion = Sampler(sampling, prompt), Limit(9 + 7 * number, 0.5 if number == 3 else None)
    sequence = steps.new_sequence()
    token = sampler.pick(steps.prefill([sequence], [prompt]), 0, len(prompt))
    completion.push(token)
    length = DraftLength(Acceptance(7), 7, ngrams=number == 4, fixed=None if number == 4 else 2 * number)
    return Request(completion, sampler, length, sequence, token), completion


def alone(number: int) -> tuple[list[int], list[list[int]]]:
    """The tokens of a request that shares no step, and those of its rounds."""
    steps = model().steps(context=128)
    single, completion = request(steps, number)
    for _ in decode(Executor(steps), [single], Governor()):
        pass
    return completion.ids, [finished.tokens for finished in single.completion.rounds]


@pytest.mark.parametrize("numbers", [[1], [0, 1], [3, 0, 2], [0, 1, 2, 3, 4], [4, 4, 3, 3]])
def test_companions_change_nothing(numbers: list[int], executor_of: Maker) -> None:
    fake = model()
    steps = fake.steps(context=128, sequences=5)
    crowd = [request(steps, number) for number in numbers]
    fake.runs.clear()
    requests = [member for member, _ in crowd]
    rounds = sum(1 for _ in decode(executor_of(steps), requests, Governor()))
    for number, (member, completion) in zip(numbers, crowd, strict=True):
        tokens, of_rounds = alone(number)
        assert completion.ids == tokens
        if number != 4:  # the governor goes by times
            assert [finished.tokens for finished in member.completion.rounds] == of_rounds
        verified = member.completion.rounds[0].sequences
        assert verified == len(numbers)
    assert sum(graph == "verify" for graph, _ in fake.runs) == rounds == max(len(r.completion.rounds) for r in requests)


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(temperature=0.8, seed=3)], ids=["0", "0.8"])
def test_companions_change_no_bit_of_a_trained_model(packages: Packages, sampling: Sampling) -> None:
    """Four prompts in one loop, each with its own draft length and end, against each of them alone."""
    engine = load(packages("trained", "Q8_0"), context=256, threads=2, sequences=4)
    steps = engine.steps
    crowd: list[Request] = []
    expected, found = [], []
    for number, prompt in enumerate(PROMPTS[:4]):
        limit = 20 + 9 * number
        options = Options(sampling, max_tokens=limit, ignore_eos=True, speculate=False)
        alone = engine.generate(prompt, options)
        alone.run()
        expected.append(alone.ids)
        ids = engine.tokenizer.encode(prompt)
        sampler, sequence = Sampler(sampling, ids), steps.new_sequence()
        completion = Limit(limit, 0.1 * number, engine.tokenizer)
        token = sampler.pick(steps.prefill([sequence], [ids]), 0, len(ids))
        completion.push(token)
        crowd.append(Request(completion, sampler, DraftLength(Acceptance(7), 7, fixed=2 * number), sequence, token))
        found.append(completion.ids)
    for _ in decode(engine.executor, crowd, Governor()):
        pass
    assert found == expected
    assert sum(finished.accepted for member in crowd for finished in member.completion.rounds) > 0


def test_a_request_that_is_complete_costs_nothing(executor_of: Maker) -> None:
    steps = model().steps()
    single, completion = request(steps, 0)
    while not completion.finished:
        completion.push(0)
    assert list(decode(executor_of(steps), [single], Governor())) == []
    assert single.completion.rounds == []


def test_drafts_are_counted_for_the_request_that_they_are_of(executor_of: Maker) -> None:
    steps = model().steps(context=128, sequences=5)
    crowd = [request(steps, number)[0] for number in (0, 2)]
    for _ in decode(executor_of(steps), crowd, Governor()):
        pass
    plain, speculative = crowd
    assert sum(finished.drafted for finished in plain.completion.rounds) == 0
    drafted = sum(finished.drafted for finished in speculative.completion.rounds)
    accepted = sum(finished.accepted for finished in speculative.completion.rounds)
    assert 0 < accepted < drafted
    assert sum(len(finished.tokens) for finished in speculative.completion.rounds) >= accepted


class Broken(Limit):
    """A completion that fails at its token number `after`."""

    def __init__(self, limit: int, after: int) -> None:
        super().__init__(limit)
        self._after = after

    def push(self, token: int) -> bool:
        if len(self.ids) == self._after:
            raise ValueError("broken")
        return super().push(token)


@pytest.mark.parametrize("after", range(1, 9))
def test_a_request_fails_alone(after: int, executor_of: Maker) -> None:
    steps = model().steps(context=128, sequences=5)
    crowd = [request(steps, number) for number in (1, 4, 2)]
    failing = crowd[1][0]
    failing.draft_length = DraftLength(Acceptance(7), 7, fixed=3)
    failing.completion = broken = Broken(40, after)
    broken.push(failing.token)
    running = [member for member, _ in crowd]
    executor, governor = executor_of(steps), Governor()
    while unfinished := [member for member in running if not member.finished]:
        decode_round(executor, unfinished, governor)
    assert str(failing.error) == "broken"
    assert broken.ids == alone(4)[0][:after]
    assert failing.state.tokens[-after + 1 :] == broken.ids[:-1] or after == 1
    assert [crowd[i][1].ids for i in (0, 2)] == [alone(number)[0] for number in (1, 2)]


def test_decode_raises_what_a_request_raised(executor_of: Maker) -> None:
    steps = model().steps(context=128)
    single, _ = request(steps, 1)
    single.completion = Broken(9, 3)
    with pytest.raises(ValueError, match="broken"):
        list(decode(executor_of(steps), [single], Governor()))


def test_a_device_draws_drafts_and_tokens_in_one_go() -> None:
    """The host chooses neither a draft nor a token of a request without penalties and floor."""
    fake = model()
    steps = fake.steps(context=128)
    executor = device_executor(steps)
    prompt, sampling = [1, 2, 3], Sampling(temperature=0.9, top_k=5, seed=2)
    sequence, sampler, completion = steps.new_sequence(), Sampler(sampling, prompt), Limit(30)
    token = sampler.pick(steps.prefill([sequence], [prompt]), 0, len(prompt))
    completion.push(token)
    asked: list[int] = []

    def choose(step: object, row: int, position: int) -> int:
        asked.append(position)
        return 0

    sampler._first_choice = choose  # type: ignore[method-assign]
    single = Request(completion, sampler, DraftLength(Acceptance(7), 7, fixed=3), sequence, token)
    rounds = sum(1 for _ in decode(executor, [single], Governor()))
    assert asked == []
    assert isinstance(executor, DeviceExecutor) and isinstance(executor.sampler, FakeSampler)
    assert executor.sampler.rounds == rounds < 29
