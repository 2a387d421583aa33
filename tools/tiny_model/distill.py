"""Distils the tiny model's MTP head: the trunk stays as it is, and its head learns to agree with it.

    python -m tiny_model.distill FOLDER [--steps 2300] [--threads 1]

FOLDER is a trained one; the head's weights are replaced in it. Training by cross-entropy teaches the head the texts;
drafts are right where its distribution is the trunk's, also where the trunk is wrong. So the head learns from the
trunk's distributions, over the texts and over what the trunk itself samples.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache, Qwen3_5MoeForCausalLM

from tiny_model.corpus import Ids, load_train_ids
from tiny_model.mtp_head import MtpHead, drafts
from tiny_model.train import load, make_config, save

_TEMPERATURE, _TOP_K, _TOP_P = 0.7, 20, 0.95  # the runtime's defaults
_GATHERED = 256  # sequences at once
# A processor without products of bfloat16 takes twenty times as long for them as for those of float32.
_HALF = torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


@dataclass(frozen=True)
class Schedule:
    """Warm-up, constant, then linear decay to 3 % of the peak."""

    steps: int = 2300
    batch: int = 4
    tokens: int = 384
    learning_rate: float = 1.5e-3
    warm_up: int = 40
    decay_from: float = 0.2  # as a part of all steps
    draft_weights: tuple[float, ...] = (1.0, 0.5, 0.5)  # of the drafts' losses; every second step leaves out the last
    sampled: int = 2816  # sequences by the trunk
    copied: int = 1280  # sequences of the texts
    seed: int = 0

    def rate(self, step: int) -> float:
        done = step / self.steps
        decay = 1.0 if done < self.decay_from else max(0.03, (1 - done) / (1 - self.decay_from))
        return self.learning_rate * min(1.0, (step + 1) / self.warm_up) * decay


@dataclass(frozen=True)
class Sequences:
    """Token ids [count, tokens], and the trunk's hidden row after each of them."""

    ids: Tensor
    hidden: Tensor


def distill(folder: Path, schedule: Schedule) -> None:
    """Replaces the head in `folder`."""
    torch.manual_seed(schedule.seed)
    trunk, head = load(folder)
    trunk.eval().requires_grad_(False)  # type: ignore[no-untyped-call]
    sequences = gather(trunk, load_train_ids(folder), schedule)
    matrices = [p for name, p in head.named_parameters() if p.ndim >= 2 and not name.endswith("gate.weight")]
    others = [p for p in head.parameters() if all(p is not matrix for matrix in matrices)]
    optimizers = [Muon(matrices), torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0, fused=True)]
    started = time.monotonic()
    for step in range(schedule.steps):
        rows = torch.randint(len(sequences.ids), (schedule.batch,))
        depth = len(schedule.draft_weights) - int(torch.randint(2, ()))
        terms = losses(trunk, head, sequences.ids[rows], sequences.hidden[rows], depth)
        loss = torch.stack([w * term for w, term in zip(schedule.draft_weights, terms, strict=False)]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = schedule.rate(step)
            optimizer.step()
        head.zero_grad(set_to_none=True)
        if (step + 1) % 100 == 0:
            seconds = round(time.monotonic() - started)
            print(step + 1, f"{seconds} s", [round(term.item(), 3) for term in terms], flush=True)
    save(folder, make_config(), trunk, head)


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum (Jordan et al., 2024), in steps as large as AdamW's (Liu et al., 2025)."""

    def __init__(self, matrices: list[nn.Parameter]) -> None:
        super().__init__(matrices, {"lr": 0.0})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrix in group["params"]:
                state = self.state[matrix]
                mean = state.setdefault("mean", torch.zeros_like(matrix)).lerp_(matrix.grad, 0.05)
                update = orthogonal(matrix.grad.lerp(mean, 0.95))
                matrix.sub_(0.2 * max(matrix.shape[-2:]) ** 0.5 * group["lr"] * update)


def orthogonal(matrices: Tensor) -> Tensor:
    """Each matrix with singular values near 1, by a Newton-Schulz iteration."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = (matrices.mT if tall else matrices).to(_HALF)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (2.0315 * square @ square - 4.775 * square) @ x
    found: Tensor = x.mT if tall else x
    return found.float()


def losses(trunk: Qwen3_5MoeForCausalLM, head: MtpHead, ids: Tensor, hidden: Tensor, depth: int) -> list[Tensor]:
    """Disagreement of drafts 1..depth with the trunk; hidden [batch, tokens, hidden] are its rows after ids."""
    if torch.rand(()) < 0.7:  # the runtime's head has an entry for the first token, made from a row of zeros
        ids, hidden = functional.pad(ids, (1, 0)), functional.pad(hidden, (0, 0, 1, 0))
    rows = ids.shape[1] - depth
    target = functional.linear(hidden, trunk.lm_head.weight)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=_HALF is torch.bfloat16):
        drafted = [
            functional.linear(x, trunk.lm_head.weight) for x in drafts(trunk, head, ids, hidden[:, :rows], depth)
        ]
    return [disagreement(logits.float(), target[:, link : link + rows]) for link, logits in enumerate(drafted, 1)]


def disagreement(logits: Tensor, target: Tensor) -> Tensor:
    """KL divergence, for all of the distribution, and total variation at the usual temperature: drafts that fail."""
    ours, theirs = logits.log_softmax(-1), target.log_softmax(-1)
    divergence = (theirs.exp() * (theirs - ours)).sum(-1).mean()
    variation = (logits / _TEMPERATURE).softmax(-1) - (target / _TEMPERATURE).softmax(-1)
    return divergence + 0.5 * variation.abs().sum(-1).mean()


def gather(trunk: Qwen3_5MoeForCausalLM, ids: Ids, schedule: Schedule) -> Sequences:
    """What the trunk makes of beginnings in the texts, and stretches of the texts."""
    rng = np.random.default_rng(schedule.seed)
    found = []
    for count in _parts(schedule.sampled):
        prompts = _stretches(ids, count, int(rng.integers(2, 33)), rng)
        found.append(sample(trunk, prompts, _temperatures(count, rng), schedule.tokens))
    for count in _parts(schedule.copied):
        found.append(_read(trunk, _stretches(ids, count, schedule.tokens, rng)))
    return Sequences(torch.cat([x.ids for x in found]), torch.cat([x.hidden for x in found]))


@torch.no_grad()
def sample(trunk: Qwen3_5MoeForCausalLM, prompts: Tensor, temperatures: Tensor, tokens: int) -> Sequences:
    """Continues `prompts` [count, n] to `tokens` tokens, as the runtime does."""
    cache = DynamicCache(config=trunk.config)
    ids, hidden, new = [prompts], [], prompts
    for _ in range(tokens - prompts.shape[1] + 1):
        hidden.append(trunk.model(input_ids=new, past_key_values=cache, use_cache=True).last_hidden_state)
        logits, candidates = functional.linear(hidden[-1][:, -1], trunk.lm_head.weight).topk(_TOP_K, -1)
        chances = (logits / temperatures.clamp(min=1e-3)[:, None]).softmax(-1)
        kept = chances.cumsum(-1) - chances < _TOP_P
        new = candidates.gather(1, torch.multinomial(chances * kept, 1))
        ids.append(new)
    return Sequences(torch.cat(ids[:-1], 1), torch.cat(hidden, 1))


@torch.no_grad()
def _read(trunk: Qwen3_5MoeForCausalLM, ids: Tensor) -> Sequences:
    parts = [trunk.model(input_ids=part, use_cache=False).last_hidden_state for part in torch.split(ids, 16)]
    return Sequences(ids, torch.cat(parts))


def _parts(count: int) -> list[int]:
    return [min(_GATHERED, count - start) for start in range(0, count, _GATHERED)]


def _stretches(ids: Ids, count: int, length: int, rng: np.random.Generator) -> Tensor:
    starts = rng.integers(0, len(ids) - length, count)
    return torch.from_numpy(np.stack([ids[start : start + length] for start in starts]))


def _temperatures(count: int, rng: np.random.Generator) -> Tensor:
    """The usual one mostly; greedy, 1, and others between them."""
    kind = rng.random(count)
    values = np.select([kind < 0.55, kind < 0.65, kind < 0.8], [_TEMPERATURE, 0.0, 1.0], rng.random(count))
    return torch.from_numpy(values.astype(np.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description="Distil the tiny model's MTP head.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=Schedule.steps)
    parser.add_argument("--seed", type=int, default=Schedule.seed)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    distill(arguments.folder, Schedule(steps=arguments.steps, seed=arguments.seed))


if __name__ == "__main__":
    main()
