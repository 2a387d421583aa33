"""Options of how tokens are sampled."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import typer

from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.sampling.sampling import Sampling

_SAMPLING = Sampling()


def _else(value: float) -> str:
    return f" (default: the model's, or {value})"


@dataclass(frozen=True)
class SamplingArguments:
    """How tokens are sampled."""

    panel: ClassVar = "Sampling"
    common: ClassVar = ("temperature", "top_k", "seed")

    temperature: Annotated[
        float | None,
        typer.Option(
            "--temp",
            "--temperature",
            help="Sampling temperature; 0 always takes the most likely token" + _else(_SAMPLING.temperature),
        ),
    ] = None
    top_k: Annotated[
        int | None, typer.Option(help="Sample from the K most likely tokens; 0: off" + _else(_SAMPLING.top_k))
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Nucleus sampling: sample from the most likely tokens up to this cumulative probability; 1: off"
            + _else(_SAMPLING.top_p)
        ),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(
            help="Drop tokens less likely than this fraction of the most likely one; 0: off" + _else(_SAMPLING.min_p)
        ),
    ] = None
    seed: Annotated[int, typer.Option("-s", "--seed", help="Random seed; -1: a new one for each run.")] = -1
    repeat_penalty: Annotated[
        float | None,
        typer.Option(
            help="Make repeated tokens less likely: divide their logits by this; 1: off"
            + _else(_SAMPLING.repeat_penalty)
        ),
    ] = None
    presence_penalty: Annotated[
        float, typer.Option(help="Make repeated tokens less likely: subtract this from their logits; 0: off.")
    ] = _SAMPLING.presence_penalty
    frequency_penalty: Annotated[
        float, typer.Option(help="Like the presence penalty, but subtracted for each occurrence; 0: off.")
    ] = _SAMPLING.frequency_penalty
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID(+|-)BIAS", help="Add to the logit of a token: 15043+1.5; 15043-inf bans it. Repeatable."
        ),
    ] = None

    def sampling(self, defaults: Sampling = _SAMPLING) -> Sampling:
        """What the sampler needs; raises TrigraphError for values out of range."""
        given = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repeat_penalty": self.repeat_penalty,
        }
        changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return replace(
            defaults,
            **changed,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=secrets.randbits(32) if self.seed == -1 else self.seed,
            logit_bias=tuple(map(parse_logit_bias, self.logit_bias or ())),
        )


_BIAS = re.compile(r"(\d{1,18})([+-](?:inf|\d+\.?\d*|\.\d+))", re.ASCII)


def parse_logit_bias(text: str) -> tuple[int, float]:
    """`ID(+|-)BIAS`, as llama.cpp writes it, to a pair for `Sampling.logit_bias`."""
    match = _BIAS.fullmatch(text)
    if match is None:
        raise TrigraphError(f"--logit-bias {quote(text)}: write ID+BIAS or ID-BIAS, such as 15043+1.5 or 15043-inf")
    return int(match[1]), float(match[2])
