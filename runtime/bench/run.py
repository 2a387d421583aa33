"""One run of the benchmark: times a package and, if asked for, other engines on the same file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Unpack

from trigraph.exporter.package.manifest import Manifest
from trigraph.exporter.package.reader import read_manifest
from trigraph.runtime.bench.completions import time_completions
from trigraph.runtime.bench.contender import Contender, OpenContender, Trigraph
from trigraph.runtime.bench.machine import Bandwidth, Machine, gpu_machine, measure_machine
from trigraph.runtime.bench.options import BenchOptions
from trigraph.runtime.bench.random_tokens import RandomTokens
from trigraph.runtime.bench.report import Report
from trigraph.runtime.bench.roofline import Roofline
from trigraph.runtime.bench.timer import Timer
from trigraph.runtime.device.choice import open_devices
from trigraph.runtime.device.device import Device
from trigraph.runtime.device.read_rate import memory_reader
from trigraph.runtime.engine.config import Settings
from trigraph.runtime.engine.engine import Engine
from trigraph.runtime.engine.loading import load


def bench(folder: Path, options: BenchOptions, others: Sequence[OpenContender] = ()) -> Report:
    """Times the package in `folder`, and the steps of `others` on the same weights in turns with ours.

    Raises TrigraphError when the package cannot do the run, or another engine cannot load the weights.
    """
    manifest = read_manifest(folder)
    context = options.context(manifest)
    *_, device = open_devices(options.device)
    started = utc_now()
    machine, bandwidth = measure(device, options.threads)
    roofline = Roofline(folder, manifest, machine)
    engine = _load(folder, options, context)
    contenders: list[Contender] = [Trigraph(engine)]
    timer = Timer(options, bandwidth, RandomTokens(manifest.config.vocab))
    try:
        for open_other in others:
            contenders.append(open_other(weights(folder, manifest), options.threads, context, options.prompt))
        timings = [*timer.prefills(contenders), *timer.steps(contenders)]
    finally:
        for contender in contenders:
            contender.close()
    timings += timer.sweeps(engine)
    if options.tokens:
        timings += time_completions(engine, timer.prompt, options)
    return Report(
        machine=machine.with_passes(bandwidth.passes),
        model=manifest.config.name,
        layers=manifest.config.trunk_layers,
        started=started,
        repetitions=options.repetitions,
        weights=engine.model.weight_layout,
        results=[roofline.result(timing) for timing in timings],
    )


def utc_now() -> str:
    """Date and time, to the minute."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def measure(device: Device, threads: int) -> tuple[Machine, Bandwidth]:
    """What the machine can do with so many threads, and its read bandwidth, to be measured again as the run goes on."""
    rate = device.copy_rate()  # once: nothing else runs there
    if rate is not None:
        return gpu_machine(), Bandwidth(lambda: rate)
    return measure_machine(threads), Bandwidth(memory_reader(threads))


def _load(folder: Path, options: BenchOptions, context: int) -> Engine:
    os.environ.setdefault("TRIGRAPH_CUDA_GRAPHS", "1")  # a shape is timed a few times only
    return load_repacked(
        folder,
        threads=options.threads,
        context=context,
        sequences=2 + len(options.contexts) + max((0, *options.sequences)),
        chunk=options.prompt,
        device=options.device,
        repack=options.repack,
    )


def load_repacked(folder: Path, **settings: Unpack[Settings]) -> Engine:
    """Loads a package, and waits until its weights are repacked if they will be."""
    engine = load(folder, **settings)
    if engine.model.repacking is not None:
        engine.model.repacking.wait()
    return engine


def weights(folder: Path, manifest: Manifest) -> Path:
    """The model's own GGUF file, or its first part."""
    return next(iter(manifest.weight_paths(folder).values()))
