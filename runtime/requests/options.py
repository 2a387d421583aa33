"""What a request asks for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trigraph.models.checks import check, is_a
from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.sampling.constraint import Constraint
from trigraph.runtime.sampling.sampling import Sampling

DRAFTERS = ("auto", "mtp", "ngram", "block")
_LONGEST_STOPS = 1 << 16  # characters: each request makes an automaton of them


@dataclass(frozen=True)
class Options:
    """What a request asks for. `max_tokens` None: as many as the context holds."""

    sampling: Sampling | None = None  # how tokens are chosen; None: as the model's file suggests
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()  # ids that end the completion, beside the model's own
    ignore_eos: bool = False
    constraint: Constraint | None = None  # of what comes after the thought, if the prompt opens one
    reasoning_budget: int | None = None  # most tokens of the thought, whose end is forced then
    speculate: bool = True
    draft_tokens: int | None = None  # most drafts a round; None leaves that to the governor
    drafter: str = "auto"  # "mtp": the MTP head; "block": a block drafter; "ngram": repetitions; "auto": the likelier
    draft_p_min: float | None = None  # a draft less likely than this is not verified; None leaves that to the governor
    forced: tuple[
        int, ...
    ] = ()  # the completion's first tokens, whatever the model finds likely; logprobs tell of them
    logprobs: int | None = None  # record each token's log-probability, and those of so many more; None: record nothing
    hidden: bool = False  # record the hidden row that each token is chosen from
    receipt: bool = False  # record what a receipt of the completion needs: see Engine.receipt

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, Sampling | None):
            raise TrigraphError(f"sampling is {quote(self.sampling)}; it must be a Sampling")
        if not (self.constraint is None or isinstance(self.constraint, Constraint)):
            raise TrigraphError(f"constraint is {quote(self.constraint)}; it must be a JsonSchema, Grammar or Regex")
        if not (isinstance(self.stop, tuple | list) and all(isinstance(stop, str) for stop in self.stop)):
            raise TrigraphError(f"stop is {quote(self.stop)}; it must be a tuple of strings")
        if (length := sum(map(len, self.stop))) > _LONGEST_STOPS:
            raise TrigraphError(f"stop has {length:,} characters in all; it must have at most {_LONGEST_STOPS:,}")
        for name in ("stop_tokens", "forced"):
            tokens = getattr(self, name)
            if not (isinstance(tokens, tuple | list) and all(is_a(token, int) for token in tokens)):
                raise TrigraphError(f"{name} is {quote(tokens)}; it must be a tuple of token ids")
        check("ignore_eos", self.ignore_eos, bool)
        check("speculate", self.speculate, bool)
        check("hidden", self.hidden, bool)
        check("receipt", self.receipt, bool)
        if self.receipt and self.forced:
            raise TrigraphError("receipt and forced exclude each other; give the forced tokens at the prompt's end")
        if self.drafter not in DRAFTERS:
            raise TrigraphError(f"drafter is {quote(self.drafter)}; it must be one of {', '.join(DRAFTERS)}")
        for name in ("max_tokens", "reasoning_budget", "draft_tokens", "logprobs"):
            if getattr(self, name) is not None:
                check(name, getattr(self, name), int, lambda value: value >= 0, "0 or more")
        if self.draft_p_min is not None:
            check("draft_p_min", self.draft_p_min, float, lambda value: 0 <= value <= 1, "from 0 to 1")

    @property
    def chosen_by(self) -> Sampling:
        """How tokens are chosen; as Sampling has it while no model has said how."""
        return Sampling() if self.sampling is None else self.sampling

    def of_model(self, suggested: Sampling) -> Options:
        """These options, with the sampling that a model's file suggests where they have none."""
        return self if self.sampling is not None else replace(self, sampling=suggested)
