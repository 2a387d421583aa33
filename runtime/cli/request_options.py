"""The options of requests that arguments ask for."""

from __future__ import annotations

from trigraph.models.errors import TrigraphError
from trigraph.runtime import Options
from trigraph.runtime.cli.arguments import EndArguments, SpeculationArguments
from trigraph.runtime.cli.sampling_arguments import SamplingArguments
from trigraph.runtime.cli.template_arguments import TemplateArguments
from trigraph.runtime.sampling.constraint import Constraint


def request_options(
    end: EndArguments,
    sampling: SamplingArguments,
    template: TemplateArguments,
    speculation: SpeculationArguments,
    constraint: Constraint | None = None,
) -> Options:
    """The options. Raises TrigraphError for values out of range."""
    if end.max_tokens < -1:
        raise TrigraphError(f"max_tokens is {end.max_tokens}; it must be 0 or more, or -1: until the context is full")
    return Options(
        sampling=sampling.sampling(),
        max_tokens=None if end.max_tokens == -1 else end.max_tokens,
        stop=tuple(end.stop or ()),
        ignore_eos=end.ignore_eos,
        constraint=constraint,
        reasoning_budget=template.reasoning_budget,
        speculate=speculation.spec,
        draft_tokens=speculation.draft_tokens,
    )
