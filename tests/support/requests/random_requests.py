"""Requests at random, whose prompts share beginnings, with all kinds of options; and models for them."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from support.models.packages import Packages
from support.texts.constraints import REGEXES, SCHEMAS
from trigraph.runtime import JsonSchema, Options, Regex, Sampling
from trigraph.runtime.sampling.constraint import Constraint

MODELS = [
    ("trained", "Q8_0", "int8", "f16"),
    ("tiny-dense", "mixed", "float32", "f32"),
    ("tiny-moe", "Q4_K_M", "int8", "f16"),
    ("tiny-next", "mixed", "int8", "f32"),
]
"""Geometry, types of the weights, of activations and of keys and values."""


def folder(packages: Packages, model: tuple[str, ...]) -> Path:
    geometry, quant, activations, kv_type = model
    return packages(geometry, quant, activations=activations, kv_type=kv_type)


@dataclass(frozen=True)
class Asked:
    """A request, and when it comes and goes."""

    prompt: tuple[int, ...]
    options: Options
    priority: int
    round: int
    cancelled: int | None
    """Rounds after it came."""


def constraint(rng: random.Random) -> Constraint | None:
    kind = rng.random()
    if kind < 0.15:
        return JsonSchema(json.dumps(rng.choice(SCHEMAS)))
    return Regex(rng.choice(REGEXES)) if kind < 0.3 else None


def requests_of(vocab: int, count: int, seed: int) -> list[Asked]:
    rng, asked, now = random.Random(seed), [], 0
    documents = [[rng.randrange(vocab) for _ in range(90)] for _ in range(3)]
    for number in range(count):
        common = rng.choice([0, 20, 60, 90])
        rest = [rng.randrange(vocab) for _ in range(rng.choice([1, 2, 7, 30, 60]))]
        sampling = Sampling(
            temperature=rng.choice([0.0, 0.7, 1.3]),
            top_k=rng.choice([0, 20]),
            repeat_penalty=rng.choice([1.0, 1.2]),
            presence_penalty=rng.choice([0.0, 0.5]),
            seed=number,
        )
        options = Options(
            sampling,
            max_tokens=rng.choice([0, 1, 5, 16, 30, 90]),
            ignore_eos=rng.random() < 0.5,
            constraint=constraint(rng),
            speculate=rng.random() < 0.8,
            draft_tokens=rng.choice([None, None, 1, 3, 7]),
        )
        cancelled = rng.randrange(20) if rng.random() < 0.15 else None
        prompt = (*rng.choice(documents)[:common], *rest)
        asked.append(Asked(prompt, options, rng.choice([0, 0, 0, 1, -1]), now, cancelled))
        now += rng.choice([0, 0, 1, 3, 10])
    return asked
