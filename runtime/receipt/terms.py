"""The options that decide a text, as a receipt states them in JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, get_type_hints

from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.requests.options import Options
from trigraph.runtime.sampling.constraint import Constraint, Grammar, JsonSchema, Regex
from trigraph.runtime.sampling.sampling import Sampling

_CONSTRAINTS: dict[str, tuple[type[Constraint], str]] = {
    "json_schema": (JsonSchema, "schema"),
    "grammar": (Grammar, "text"),
    "regex": (Regex, "pattern"),
}
_NUMBERS = {name: kind for name, kind in get_type_hints(Sampling).items() if kind in (int, float)}


@dataclass(frozen=True)
class ConstraintText:
    """A constraint: `type` is json_schema, grammar or regex."""

    type: str
    text: str

    @classmethod
    def of(cls, constraint: Constraint) -> ConstraintText:
        """The type and text of a constraint."""
        for name, (kind, field) in _CONSTRAINTS.items():
            if isinstance(constraint, kind):
                return cls(name, getattr(constraint, field))
        raise TrigraphError(f"no receipt can state a constraint of the type {type(constraint).__name__}")

    def constraint(self) -> Constraint:
        """The constraint. Raises TrigraphError when there is no such one, or it is malformed."""
        if self.type not in _CONSTRAINTS:
            raise TrigraphError(f"constraint.type is {quote(self.type)}; it must be one of {', '.join(_CONSTRAINTS)}")
        kind, field = _CONSTRAINTS[self.type]
        return kind(**{field: self.text})


@dataclass(frozen=True)
class Terms:
    """Everything in Options that a text depends on; in logit_bias, null stands for a ban."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_window: int
    seed: int
    logit_bias: tuple[tuple[int, float | None], ...]
    max_tokens: int | None
    stop: tuple[str, ...]
    stop_tokens: tuple[int, ...]
    ignore_eos: bool
    constraint: ConstraintText | None
    reasoning_budget: int | None

    @classmethod
    def of(cls, options: Options) -> Terms:
        """The terms of a request with these options."""
        sampling, constraint = options.chosen_by, options.constraint
        numbers: dict[str, Any] = {name: kind(getattr(sampling, name)) for name, kind in _NUMBERS.items()}
        biases = ((int(token), None if bias == -math.inf else float(bias)) for token, bias in sampling.logit_bias)
        return cls(
            **numbers,
            logit_bias=tuple(biases),
            max_tokens=None if options.max_tokens is None else int(options.max_tokens),
            stop=tuple(options.stop),
            stop_tokens=tuple(map(int, options.stop_tokens)),
            ignore_eos=bool(options.ignore_eos),
            constraint=None if constraint is None else ConstraintText.of(constraint),
            reasoning_budget=None if options.reasoning_budget is None else int(options.reasoning_budget),
        )

    def options(self) -> Options:
        """The options of a request. Raises TrigraphError for values out of range."""
        biases = tuple((token, -math.inf if bias is None else bias) for token, bias in self.logit_bias)
        return Options(
            Sampling(**{name: getattr(self, name) for name in _NUMBERS}, logit_bias=biases),
            max_tokens=self.max_tokens,
            stop=self.stop,
            stop_tokens=self.stop_tokens,
            ignore_eos=self.ignore_eos,
            constraint=None if self.constraint is None else self.constraint.constraint(),
            reasoning_budget=self.reasoning_budget,
        )
