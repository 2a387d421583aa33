"""Opens the model that a command is given."""

from __future__ import annotations

import gc
import time

from trigraph.custom_ops import explain_bus_errors
from trigraph.runtime import Engine, load
from trigraph.runtime.cli.arguments import ModelArguments, export_options, parse_bytes
from trigraph.runtime.cli.console import progress_bars, say
from trigraph.runtime.cli.numbers import parse_shares, parse_sizes
from trigraph.runtime.engine.config import Settings
from trigraph.runtime.requests.draft_length import OFF

_NO_HEAD = (
    "note: the model has no MTP head, the layer that drafts: drafts come from repetitions of the text alone; files "
    "with a head are in repositories like unsloth/Qwen3.6-35B-A3B-MTP-GGUF, --mtp names a file with the head alone, "
    "and --draft-model one with a block drafter"
)


def load_arguments(model: ModelArguments, *, speculation: bool, sequences: int | None = None) -> Settings:
    """What `load` is called with, beside the model's path."""
    return Settings(
        threads=model.threads,
        context=model.context,
        sequences=sequences,
        kv_memory=parse_bytes("--kv-memory", model.kv_memory),
        cache_dir=model.cache_dir,
        cache_size=parse_bytes("--cache-size", model.cache_size),
        speculation=speculation,
        image_tokens=model.image_tokens,
        options=export_options(
            model.path,
            mtp=model.mtp,
            mmproj=model.mmproj,
            draft_model=model.draft_model,
            kv_type=model.kv_type,
            rope_scaling=model.rope_scaling,
        ),
        device=model.device,
        experts=model.experts,
        gpu_memory=parse_sizes("--gpu-memory", model.gpu_memory),
        split=parse_shares("--split", model.split),
        repack=model.repack,
    )


def open_engine(
    model: ModelArguments, *, speculation: bool, verbose: bool, sequences: int | None = None, share: float = 1.0
) -> Engine:
    """Loads the model, with progress bars, and says what the user should know of it.

    `share`: the part of free memory that it may take.
    """
    settings = load_arguments(model, speculation=speculation, sequences=sequences)
    settings["memory_share"] = share
    started = time.perf_counter()
    with progress_bars() as progress:
        engine = load(model.path, **settings, progress=progress)
    gc.freeze()  # what is there stays: the collector looks at it no more, which would take as long as many short steps
    if engine.model.kernels != "no":
        explain_bus_errors()
    for notice in engine.model.notices:
        say(f"note: {notice}")
    if speculation and engine.model.no_draft not in (None, OFF):
        say(_NO_HEAD)
    if engine.model.device.reason is not None:
        say(f"note: running on the CPU: {engine.model.device.reason}")
    if verbose:
        _describe(engine, time.perf_counter() - started)
    return engine


def _describe(engine: Engine, seconds: float) -> None:
    model = engine.model
    say(
        f"loaded in {seconds:.2f} s: context {engine.context}, {model.kernels} kernels, weights {model.weight_layout}, "
        f"state of up to {engine.steps.state.nbytes() / 1e6:,.0f} MB, speculation {model.speculation}"
    )
