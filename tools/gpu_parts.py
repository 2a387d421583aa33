"""Stages of tools/gpu.py for models in parts, on one GPU."""

from __future__ import annotations

import re
import statistics
from functools import partial

from gpu_session import Session, model
from support.devices.placed import budget_for_layers
from trigraph.exporter import ExportOptions
from trigraph.runtime import Engine, load
from trigraph.runtime.bench.sample import seconds
from trigraph.runtime.engine.package_cache import cached_package

_SEQUENCES, _PROMPT = 2, 4096
_TAKES = re.compile(r"should take ([\d.,]+) ms")


def parts(session: Session) -> None:
    """A model in two parts on one GPU: the bits of the whole one, and what the border costs."""
    found: dict[str, bytes] = {}
    for name, device, split in (("one part", "cuda", None), ("two parts", "cuda:0,cuda:0", (2, 2))):
        path = model(session, "qwen3.6-35b-a3b", 4)
        engine = load(path, device=device, split=split, sequences=_SEQUENCES, context=2 * _PROMPT)
        found[name] = _prompt(session, "parts", name, engine)
        sequence = engine.steps.new_sequence()
        engine.steps.prefill([sequence], [list(range(1000))])
        session.note("parts", f"{name}: verify of 4, us", f"{1e6 * _verify(engine, [1, 2, 3, 4]):.0f}")
        found[name] += engine.steps.verify([sequence], [[5]]).logits.copy().tobytes()
        engine.close()
    if len({*found.values()}) > 1:
        raise RuntimeError("two parts have other bits than one")


def parts_27b(session: Session) -> None:
    """A dense model in 12 GB: what reading a token's weights should take, and what a decode takes."""
    path, context = model(session, "qwen3.6-27b", session.layers), 8192
    budget = 12 << 30
    if session.layers is not None:
        budget = budget_for_layers(
            cached_package(path, ExportOptions()).folder, session.layers // 2, context, _SEQUENCES
        )
    engine = load(path, device="cuda", gpu_memory=budget, sequences=_SEQUENCES, context=context)
    (told,) = [notice for notice in engine.model.notices if " holds " in notice]
    print(told, flush=True)
    if (expected := _TAKES.search(told)) is None:
        raise RuntimeError("the start does not say what a token should take")
    took = 1e3 * _verify(engine, [1])
    session.note("parts-27b", "decode, ms", f"{took:.1f}", f"by bytes and bandwidths {expected[1]}")
    four = 1e3 * _verify(engine, [1, 2, 3, 4])
    session.note("parts-27b", "verify of 4 / decode", f"{four / took:.2f}")
    engine.close()


def _prompt(session: Session, stage: str, name: str, engine: Engine) -> bytes:
    """The logits of a prompt, which is timed once memory is there."""
    times, rows = [], b""
    for _ in range(3):
        sequence = engine.steps.new_sequence()
        times.append(seconds(partial(engine.steps.prefill, [sequence], [list(range(_PROMPT))])))
        rows = engine.steps.verify([sequence], [[1]]).logits.copy().tobytes()
        engine.steps.release(sequence)
    session.note(stage, f"{name}: prompt of {_PROMPT}, ms", f"{1e3 * min(times[1:]):.1f}")
    return rows


def _verify(engine: Engine, tokens: list[int]) -> float:
    """Median seconds of verifies of these tokens."""
    sequence, times = engine.steps.new_sequence(), []
    engine.steps.prefill([sequence], [list(range(16))])
    for _ in range(40):
        times.append(seconds(partial(engine.steps.verify, [sequence], [tokens])))
        engine.steps.keep(sequence, len(tokens) // 2)
    engine.steps.release(sequence)
    return statistics.median(times[10:])
