"""What a model could do on GPUs that do not hold it, from bytes alone: `python tools/experts_on_paper.py MODEL.gguf`.

Prints a table in Markdown. A step reads all other weights and its experts on the device at the data sheet's bandwidth,
and at the same time its experts in the host's memory; nothing else takes time. So no GPU is faster.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from trigraph.exporter import describe
from trigraph.models.model import Model, open_model
from trigraph.models.synth.popularity import chances
from trigraph.runtime.device.parts.placement import Placement, place, weights_of_file

GPUS = {"RTX 3060": (12, 360e9), "RTX 4070 Ti": (12, 504e9), "RTX 4090": (24, 1008e9)}
"""Memory in GiB, of which the system has half of one, and bytes a second."""
HOST = 60e9
CONTEXT = 8192
DRAFTS, ACCEPTED = 3, 0.8


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    path = parser.parse_args().model
    model, description = open_model(path), describe(path)
    state = 4 * description.state_bytes + description.kv_bytes * CONTEXT // description.context
    print(
        "| GPU | experts on it | choices | host, a token | tokens a second | with drafts |\n|---|---|---|---|---|---|"
    )
    for name, (gib, rate) in GPUS.items():
        placement = place(weights_of_file(model), state, int((gib - 0.5) * 2**30))
        if placement.host_layers:
            print(f"| {name} | too small for all other weights | | | | |")
            continue
        held = sum(placement.slots.values()) / sum(layer.experts for layer in placement.weights.layers)
        for skew, choices in ((0.0, "even"), (1.0, "by Zipf's law")):
            host, plain = step(model, placement, skew, 1, rate)
            _, verify = step(model, placement, skew, 1 + DRAFTS, rate)
            tokens = sum(ACCEPTED**i for i in range(DRAFTS + 1))
            drafted = tokens / (verify + DRAFTS * head_seconds(model, rate))
            print(f"| {name} | {held:.0%} | {choices} | {host / 1e9:.2f} GB | {1 / plain:.0f} | {drafted:.0f} |")


def step(model: Model, placement: Placement, skew: float, rows: int, rate: float) -> tuple[float, float]:
    """Bytes that a step of so many tokens reads from the host's memory, and its seconds."""
    host = device = 0.0
    for layer in placement.weights.layers:
        if not layer.head:
            held = placement.slots[layer.name]
            read = (1 - (1 - chances(layer.experts, layer.chosen, skew)) ** rows) * layer.expert_bytes
            device, host = device + float(read[:held].sum()), host + float(read[held:].sum())
    others = placement.weights.trunk_bytes - head_bytes(model) - model.tensors["token_embd.weight"].nbytes
    return host, others / rate + max(host / HOST, device / rate)


def head_bytes(model: Model) -> int:
    """Weights of the MTP head, without routed experts."""
    names = tuple(f"blk.{model.config.trunk_layers + i}." for i in range(model.config.mtp_layers))
    return sum(
        tensor.nbytes for name, tensor in model.tensors.items() if name.startswith(names) and "_exps" not in name
    )


def head_seconds(model: Model, rate: float) -> float:
    """Of a draft: the head, and logits of a part of the vocabulary, which is left out here."""
    return head_bytes(model) / rate


if __name__ == "__main__":
    main()
