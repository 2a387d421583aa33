"""The models that tools/gpu.py times: where they lie, and what gpu_model.py does with them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpu_expected import Variant
from gpu_session import NONE, ROOT, Environment, MissingError, Session


class Run(NamedTuple):
    """A model, where it lies, and what gpu_model.py does with it."""

    model: str
    work: str
    memory: float = 0
    """GiB that it may take on a GPU; 0: what is free."""
    device: str = "cuda"
    after: int = 4096
    """Tokens before a step."""
    kv_type: str = "f16"
    layers: int | None = None
    needed: float = 0
    """GiB of a GPU that holds it whole, with its state."""
    llama: str | None = None
    """Options to do the same with llama.cpp; None: it does nothing beside."""

    def words(self, work: str, layers: int | None) -> list[str]:
        """Of gpu_model.py, for such work. A file of few layers gets their share of the memory, beside 3 GiB."""
        layers = layers or self.layers
        memory = self.memory if layers is None else 3 + (self.memory - 3) * layers / LAYERS[self.model]
        budget = ["--gpu-memory", str(int(memory * 2**30))] if self.memory else []
        where = ("--device", self.device, "--after", str(self.after), "--kv-type", self.kv_type)
        return [*work.split(), *where, *budget]


STEPS = "decode verify-2 verify-4 verify-8"
REQUESTS = "requests-1 requests-4"
LAYERS = {"35b": 40, "27b": 64}
RUNS: Mapping[str, Run] = {
    "35b": Run("35b", f"hash {STEPS} draft prompt-4096 sequences-8 sequences-16 prompt-32768 {REQUESTS}",
               needed=36, llama=""),
    "12gb": Run("35b", "hash prompt-2048 decode verify-4 sequences-4", 12, after=2048, llama="--host-experts 23"),
    "27b": Run("27b", f"hash {STEPS} draft prompt-4096", needed=21, llama=""),
    "profile": Run("35b", "profile", needed=25),
    "8gb": Run("35b", "hash prompt-2048 decode verify-4 sequences-4", 8, after=2048),
    "parts": Run("35b", "hash decode verify-4 prompt-4096", device="cuda:0,cuda:0", needed=26),
    "layers": Run("27b", "hash decode verify-4", 12, after=256),
    "requests": Run("35b", REQUESTS, 12, after=512),
    "long": Run("27b", "prompt-32768", needed=25),
    "few": Run("35b", "", layers=8, needed=8),
    "few-q8_0": Run("35b", "", kv_type="q8_0", layers=8, needed=8),
    "few-27b": Run("27b", "", layers=8, needed=8),
}  # fmt: skip
"""By stage; the last three, which are loaded in seconds, are for variants alone."""

BITS = {
    "35b on the CPU": Run("35b", "hash", device="cpu", layers=8),
    "35b on the GPU": Run("35b", "hash", layers=8, needed=8),
    "35b with experts on both": Run("35b", "hash", 6, layers=8),
    "27b on the CPU": Run("27b", "hash", device="cpu", layers=8),
    "27b on the GPU": Run("27b", "hash", layers=8, needed=8),
}
"""What computes the same, by model."""


def time_run(
    session: Session, stage: str, run: Run, work: str, name: str = "", environment: Environment = NONE,
    words: Sequence[str] = (),
) -> None:  # fmt: skip
    """Has gpu_model.py do work; `words`: in place of the run's own options."""
    if session.layers is None and (needed := run.memory or run.needed) > session.memory:
        raise MissingError(f"it takes {needed} GiB of a GPU, which has {session.memory:.0f}")
    path, bits = session.model(run.model, run.layers), set[str]()
    program, words = ROOT / "tools" / "gpu_model.py", words or run.words(work, session.layers)
    variables = {"TRIGRAPH_CUDA_GRAPHS": "1", **session.switches, **environment}
    for line in session.lines(sys.executable, program, path, *words, environment=variables):
        row = parsed(line)
        if name and row["what"].startswith(("seconds", "a token")):  # known of its stage
            continue
        session.note(stage, name + row["what"], *row["figures"], text=row["text"])
        if row["what"] == "hash":
            bits = {row["text"], session.hashes.setdefault((path, run.kv_type), row["text"])}
    if len(bits) > 1:
        raise RuntimeError(f"hashes differ: {' and '.join(sorted(bits))}")


def parsed(line: str) -> Any:
    """A line of JSON. Raises RuntimeError for another one, and for one that is cut."""
    try:
        return json.loads(line)
    except ValueError:
        raise RuntimeError(f"this is no row: {line[:80]}") from None


def environment_of(variant: Variant) -> Environment:
    """Variables that choose a variant. Raises MissingError where it has no library."""
    folder = Path(os.environ.get("TRIGRAPH_LIBRARY_DIR", ""), variant.folder)
    if variant.defines and not folder.is_dir():
        raise MissingError(f"there is no library with {variant.defines}")
    return {**variant.environment, **({"TRIGRAPH_LIBRARY_DIR": str(folder)} if variant.defines else {})}
