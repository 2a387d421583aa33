"""Times whole completions, plain and speculative, in turns."""

from __future__ import annotations

from collections.abc import Iterator

from trigraph.runtime.bench.options import BenchOptions
from trigraph.runtime.bench.replay import replaying
from trigraph.runtime.bench.sample import Case, Sample, Timing, seconds
from trigraph.runtime.drafting.acceptance import Acceptance
from trigraph.runtime.drafting.choice import Governor
from trigraph.runtime.engine.engine import Engine
from trigraph.runtime.execution.executor import Executor
from trigraph.runtime.requests.completion import Completion
from trigraph.runtime.requests.draft_length import DraftLength, no_drafts
from trigraph.runtime.requests.options import Options
from trigraph.runtime.requests.request import Request
from trigraph.runtime.sampling.sampling import Sampler, Sampling
from trigraph.runtime.scheduler.speculation import decode


def time_completions(engine: Engine, prompt: list[int], options: BenchOptions) -> Iterator[Timing]:
    """Greedy completions: plain, and speculative if the model can draft, with the governor's draft length."""
    steps = engine.steps
    plain: list[Sample] = []
    speculative: list[Sample] = []
    note = ""
    for _ in range(max(1, options.repetitions // 4)):
        completion = _Timed(engine, prompt, options.tokens, engine.executor, no_drafts("plain"))
        plain.append(completion.sample)
        if not (heads := engine.model.heads):
            continue
        longest = steps.max_pending - 1
        executor = engine.executor
        if options.accept is not None:
            executor = replaying(executor, [[*prompt, *completion.tokens]], options.accept)
        length = DraftLength(Acceptance(longest), longest, heads=heads)
        again = _Timed(engine, prompt, options.tokens, executor, length)
        if again.tokens != completion.tokens:
            raise RuntimeError("speculation changed the completion: this is a defect, please report it")
        speculative.append(again.sample)
        note = f"accepted {again.accepted}/{again.drafted}, speculation {length.report()}"
    case = Case("trigraph", "generate", options.tokens, len(prompt))
    yield Timing(case, plain, "plain")
    if speculative:
        yield Timing(case, speculative, note)


def greedy_completion(engine: Engine, prompt: list[int], tokens: int) -> Completion:
    """A completion of so many tokens, whatever they are."""
    options = Options(Sampling(temperature=0), max_tokens=tokens, ignore_eos=True)
    return Completion(prompt, options, engine.tokenizer, engine.context)


class _Timed:
    """One completion: its tokens, and the time that it took without its prompt."""

    def __init__(
        self, engine: Engine, prompt: list[int], length: int, executor: Executor, draft_length: DraftLength
    ) -> None:
        steps = engine.steps
        sequence = steps.new_sequence()
        completion = greedy_completion(engine, prompt, length)
        sampler = Sampler(completion.options.chosen_by, prompt)
        token = sampler.pick(steps.prefill([sequence], [prompt]), 0, len(prompt))
        completion.push(token)
        request = Request(completion, sampler, draft_length, sequence, token)
        self.sample = Sample(seconds(lambda: list(decode(executor, [request], Governor()))))
        steps.release(sequence)
        self.tokens = completion.ids
        self.accepted = sum(done.accepted for done in completion.rounds)
        self.drafted = sum(done.drafted for done in completion.rounds)
