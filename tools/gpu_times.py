"""Stages of tools/gpu.py that time whole models: steps, prompts, and batches of requests. Aims are of an H100."""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

from gpu_session import CLI, Session, model
from trigraph.runtime import load
from trigraph.runtime.bench.load import Load
from trigraph.runtime.bench.own_server import OwnServer
from trigraph.runtime.bench.random_tokens import RandomTokens

DRAFTS = 3
"""Of a round."""
TURNS = 3
"""Of requests without drafts and with them."""


def bench(session: Session, stage: str, geometry: str) -> dict[tuple[str, int], dict[str, Any]]:
    """`trigraph bench` on the GPU: by what was timed and how many tokens it had.

    Of 4 layers first, launch by launch and as CUDA graphs, then of all layers as CUDA graphs, which is what comes back.
    """
    results: dict[tuple[str, int], dict[str, Any]] = {}
    for layers, graphs in ((4, "0"), (4, "1"), (session.layers, "1")):
        path = model(session, geometry, layers)
        command = (sys.executable, *CLI, "bench", path, "--device", "cuda", "--json", "-p", "4096")
        report = json.loads(session.run(*command, TRIGRAPH_CUDA_GRAPHS=graphs))
        results = {(row["name"], row["k"]): row for row in report["results"]}
        how = f"{layers or 'all'} layers, {'CUDA graphs' if graphs == '1' else 'launch by launch'}"
        session.note(stage, f"{how}: device copies, GB/s", f"{report['machine']['read_gb_s']:.0f}")
        for (name, k), row in results.items():
            share = "" if row["roofline"] is None else f", {row['roofline']:.2f} of roofline"
            session.note(stage, f"{how}: {name} of {k}", f"{row['median_ms']:.2f} ms{share}")
    return results


def time_35b(session: Session) -> None:
    """A mixture of experts: a decode, and a round of three drafts and a verify of four."""
    results = bench(session, "time-35b", "qwen3.6-35b-a3b")
    decode, verify, draft = (results[key]["median_ms"] for key in (("decode", 1), ("verify", 4), ("draft", 1)))
    session.note("time-35b", "decode, ms", f"{decode:.2f}", "2.95 by count, at most 1.5")
    session.note("time-35b", "verify of 4, ms", f"{verify:.2f}", "4.25 by count, at most 2.4")
    session.note("time-35b", "3 drafts and a verify of 4, ms", f"{DRAFTS * draft + verify:.2f}", "at most 2.8")
    session.note("time-35b", "prompt of 4096, ms", f"{results['prefill', 4096]['median_ms']:.0f}", "at most 130")


def time_27b(session: Session) -> None:
    """A dense model, where memory is the limit."""
    results = bench(session, "time-27b", "qwen3.6-27b")
    decode, verify = results["decode", 1], results["verify", 4]
    session.note("time-27b", "decode, ms", f"{decode['median_ms']:.2f}", "10.3 by count, at most 7.2")
    session.note("time-27b", "decode, of roofline", f"{decode['roofline']:.2f}", "at least 0.6")
    session.note("time-27b", "verify of 4 / decode", f"{verify['median_ms'] / decode['median_ms']:.2f}", "at most 1.15")
    session.note("time-27b", "prompt of 4096, ms", f"{results['prefill', 4096]['median_ms']:.0f}", "at most 650")


def prompts(session: Session) -> None:
    """The speed of a long prompt beside that of a short one."""
    path, rates = model(session, "qwen3.6-35b-a3b", session.layers), {}
    for tokens in (4096, 32768):
        options = ("--json", "-p", str(tokens), "-n", "0", "-r", "2")
        report = json.loads(session.run(sys.executable, *CLI, "bench", path, "--device", "cuda", *options))
        (row,) = (row for row in report["results"] if row["name"] == "prefill")
        rates[tokens] = 1e3 * tokens / row["median_ms"]
        session.note("prompts", f"prompt of {tokens}, tokens/s", f"{rates[tokens]:.0f}")
    session.note("prompts", "speed of 32768 / of 4096", f"{rates[32768] / rates[4096]:.2f}", "at least 0.5")


def requests(session: Session) -> None:
    """Eight and sixteen requests, without drafts and with those that the program chooses."""
    engine = load(model(session, "qwen3.6-35b-a3b", session.layers), device="cuda", sequences=16, context=1024)
    servers, random = (OwnServer(engine, 0), OwnServer(engine)), RandomTokens(engine.model.vocab)
    for clients, aim in ((8, 2000), (16, 2500)):
        rates: list[list[float]] = [[], []]
        for turn in range(1 + TURNS):  # the first one warms up
            work = Load.draw(random, 2 * clients, 128, 256, clients)
            for server, found in zip(servers, rates, strict=True):
                speed = server.serve(work).tokens_per_s
                if turn:
                    found.append(speed)
        plain, drafts = map(statistics.median, rates)
        session.note("requests", f"{clients} requests, tokens/s", f"{plain:.0f}", f"at least {aim}")
        session.note("requests", f"{clients} requests, with drafts / without", f"{drafts / plain:.2f}", "at least 0.97")
