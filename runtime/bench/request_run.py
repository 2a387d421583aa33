"""Loads of requests: our engine, and others beside it in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from trigraph.exporter.package.reader import read_manifest
from trigraph.runtime.bench.load import Load, OpenServer, ServedLoad, Server
from trigraph.runtime.bench.machine import Bandwidth
from trigraph.runtime.bench.own_server import OwnServer
from trigraph.runtime.bench.random_tokens import RandomTokens
from trigraph.runtime.bench.request_options import RequestOptions
from trigraph.runtime.bench.request_report import RequestReport
from trigraph.runtime.bench.request_result import RequestResult, summary
from trigraph.runtime.bench.roofline import Roofline
from trigraph.runtime.bench.run import load_repacked, measure, utc_now, weights
from trigraph.runtime.bench.sample import Case, Sample, Timing
from trigraph.runtime.device.choice import open_devices

_REST = 0.1  # seconds before a load: the threads of the engine before spin for some ms
_PASSES = 3  # of reads before each load
_WAKING_TOKENS = 2  # of a request before each load: the system may have dropped weights that were not read for a while


def bench_requests(folder: Path, options: RequestOptions, others: Sequence[OpenServer] = ()) -> RequestReport:
    """Serves loads of requests with the package in `folder`, and with `others` on the same weights in turns with ours.

    Raises TrigraphError when the package cannot do the run, or another engine cannot.
    """
    manifest = read_manifest(folder)
    context = options.context(manifest)
    (*_, device), started = open_devices(options.device), utc_now()
    machine, bandwidth = measure(device, options.threads)
    random = RandomTokens(manifest.config.vocab)
    with ExitStack() as stack:
        engine = load_repacked(
            folder,
            threads=options.threads,
            context=context,
            sequences=max(options.concurrency),
            device=options.device,
            repack=options.repack,
        )
        servers: list[Server] = [OwnServer(engine, *options.draft_tokens)]
        for open_other in others:
            servers.append(open_other(weights(folder, manifest), options, context))
            stack.callback(servers[-1].close)
        loads = [
            (concurrency, serve_loads(servers, options, concurrency, random, bandwidth))
            for concurrency in options.concurrency
        ]
    roofline = Roofline(folder, manifest, machine)
    results = [
        _beside_floor(roofline, result, taken[result.engine], options)
        for concurrency, taken in loads
        for result in summaries(concurrency, taken)
    ]
    return RequestReport(
        machine=machine.with_passes(bandwidth.passes),
        model=manifest.config.name,
        layers=manifest.config.trunk_layers,
        started=started,
        repetitions=options.repetitions,
        weights=engine.model.weight_layout,
        prompt=options.prompt,
        tokens=options.tokens,
        shared_prefix=options.shared_prefix,
        settings={server.name: server.settings for server in servers},
        results=results,
    )


def serve_loads(
    servers: Sequence[Server],
    options: RequestOptions,
    concurrency: int,
    random: RandomTokens,
    bandwidth: Bandwidth,
) -> dict[str, list[ServedLoad]]:
    """The loads of each engine, by its name. All serve the same load before the next; another one begins each time."""

    def draw(requests: int, tokens: int) -> Load:
        return Load.draw(random, requests, options.prompt, tokens, concurrency, options.shared_prefix)

    warm_up = draw(concurrency, options.tokens)
    for server in servers:
        server.serve(warm_up)
    loads: dict[str, list[ServedLoad]] = {server.name: [] for server in servers}
    for i in range(options.repetitions):
        work = draw(options.requests, options.tokens)
        for server in (*servers[i % len(servers) :], *servers[: i % len(servers)]):
            time.sleep(_REST)
            server.serve(draw(1, _WAKING_TOKENS))
            read = statistics.median(bandwidth.measure() for _ in range(_PASSES))
            loads[server.name].append(replace(server.serve(work), read_gb_s=read))
    return loads


def summaries(concurrency: int, loads: dict[str, list[ServedLoad]]) -> Iterator[RequestResult]:
    """The figures of each engine; the first one is ours."""
    ours, *others = loads
    yield summary(ours, concurrency, loads[ours])
    for name in others:
        yield summary(name, concurrency, loads[name], loads[ours])


def _beside_floor(
    roofline: Roofline, result: RequestResult, loads: Sequence[ServedLoad], options: RequestOptions
) -> RequestResult:
    """The figures with the floor of a round half-way through the completions, at the bandwidth of each load."""
    sequences = max(1, round(result.sequences_per_round or result.concurrency))
    rows = max(1, round((result.rows_per_round or sequences) / sequences))
    case = Case(result.engine, "verify", rows, options.prompt + options.tokens // 2, sequences)
    between = [statistics.median([gap for served in load.served for gap in served.gaps]) for load in loads]
    samples = [Sample(gap, load.read_gb_s) for gap, load in zip(between, loads, strict=True)]
    step = roofline.result(Timing(case, samples))
    return replace(result, floor_ms=step.floor_ms, roofline=step.roofline)
