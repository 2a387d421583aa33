"""From the options of a command to what a request asks for."""

from __future__ import annotations

from typing import Protocol

from trigraph.runtime import Options
from trigraph.runtime.cli.arguments import ConstraintArguments, SpeculationArguments
from trigraph.runtime.cli.sampling_arguments import SamplingArguments
from trigraph.runtime.cli.template_arguments import TemplateArguments


class Limits(Protocol):
    """Where a completion ends."""

    @property
    def max_tokens(self) -> int: ...
    @property
    def stop(self) -> list[str] | None: ...
    @property
    def ignore_eos(self) -> bool: ...


def request_options(
    limits: Limits,
    sampling: SamplingArguments,
    constraint: ConstraintArguments,
    template: TemplateArguments,
    speculation: SpeculationArguments,
) -> Options:
    """What a request asks for. Raises TrigraphError for values out of range."""
    return Options(
        sampling=sampling.sampling(),
        max_tokens=None if limits.max_tokens == -1 else limits.max_tokens,
        stop=tuple(limits.stop or ()),
        ignore_eos=limits.ignore_eos,
        constraint=constraint.constraint(),
        reasoning_budget=template.reasoning_budget,
        speculate=speculation.spec,
        draft_tokens=speculation.draft_tokens,
        drafter=speculation.drafter,
        draft_p_min=speculation.draft_p_min,
    )
