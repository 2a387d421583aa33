"""Stages of tools/gpu.py that take longer, and need a checkout: tests, checkers, and loads that last."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import gpu_load
from gpu_session import ROOT, Session, Stage, summary
from support.operators.run import OPERATOR_TESTS, SKIPPED_ON_DEVICES
from trigraph.runtime import load
from trigraph.runtime.bench.load import Load
from trigraph.runtime.bench.random_tokens import RandomTokens
from trigraph.runtime.device.cuda.device import CudaDevice

CHECKERS = ("memcheck", "racecheck", "synccheck", "initcheck")
"""Of compute-sanitizer."""
SOAKED = 450
"""Seconds of a piece, so that a machine that is lent for ten minutes at a time can run it."""


def operators(session: Session) -> None:
    """Each operator against its NumPy reference, fused ones and draws too; rows alone and together; errors."""
    session.note("operators", "tests", text=_tested(session, OPERATOR_TESTS))


def promise(session: Session) -> None:
    """Whole models: cuts of prompts, verifies, rejected tokens, drafts, forks and companions."""
    for graphs, name in (("0", "launch by launch"), ("1", "CUDA graphs")):
        session.note("promise", f"tests, {name}", text=_tested(session, ["promise/test_promise.py"], graphs))


def _tested(session: Session, names: Sequence[str], graphs: str = "1") -> str:
    """Runs files of tests on the CUDA library; how many passed."""
    files = [str(ROOT / "tests" / name) for name in names]
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files)
    environment = {"TRIGRAPH_TEST_LIBRARY": "cuda", "TRIGRAPH_CUDA_GRAPHS": graphs}
    return summary(session.run(*command, environment=environment), SKIPPED_ON_DEVICES)


def sanitizer(session: Session) -> None:
    """Accesses outside buffers, races, barriers that are not met, reads of what nothing wrote: in all kernels."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise RuntimeError("compute-sanitizer is missing (it comes with the CUDA toolkit)")
    for checker in CHECKERS:
        # racecheck is slow
        shapes = ("--rows", "3,20", "odd") if checker == "racecheck" else ("--rows", "1,8,20", "small", "odd")
        command = (program, "--tool", checker, "--error-exitcode", "9", session.kernels(), "--bits", *shapes)
        session.run(*command, environment={"TRIGRAPH_SEPARATE_SCRATCH": "1"})
        session.note("sanitizer", checker, text="clean")


def served(session: Session) -> None:
    """`trigraph serve` under the load of SGLang's cookbook: prompts of 8,192 tokens, completions of 1,024."""
    random = RandomTokens(100_000)
    with gpu_load.serving(session.model("35b"), "cuda", 8192 + 1024 + 64, 16) as port:
        gpu_load.served(port, Load.draw(random, 2, 8192, 32, 2))
        for clients, requests in ((1, 4), (16, 32)):
            found = gpu_load.served(port, Load.draw(random, requests, 8192, 1024, clients))
            values = (found.first_ms, found.ms_a_token, found.tokens_a_second, found.longest_gap_ms)
            session.note("served", f"{clients} clients: first token, a token, tokens/s, longest gap", *values)


def soak(session: Session, piece: int) -> None:
    """A quarter of half an hour of mixed requests, after which as much device memory is in use as before."""
    engine = load(session.model("35b", 4), device="cuda", sequences=8, context=8192)
    device = engine.model.device
    assert isinstance(device, CudaDevice)

    def used() -> int:
        free, total = device.functions.free_memory()
        return total - free

    samples = gpu_load.mixed(engine, SOAKED, used, piece)
    grown = gpu_load.growth(samples)
    session.note(f"soak-{piece}", f"growth in {len(samples)} rounds, MB", grown / 1e6)
    if grown > 4e6:
        raise RuntimeError(f"device memory in use after each round, MB: {[round(it / 1e6) for it in samples]}")


STAGES: Mapping[str, Stage] = {
    "sanitizer": Stage(sanitizer, 120),
    "operators": Stage(operators, 120),
    "promise": Stage(promise, 180),
    "served": Stage(served, 480),
    **{f"soak-{piece}": Stage(partial(soak, piece=piece), SOAKED + 100) for piece in (1, 2, 3, 4)},
}
