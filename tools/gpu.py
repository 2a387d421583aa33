"""What only a machine with a GPU can tell: `make gpu`, or `python tools/gpu.py [STAGE ...] [--layers N]`.

Runs every kernel, the operators' and the runtime's tests on the GPU, looks for memory errors with compute-sanitizer,
and times synthetic files of published geometries, first of 4 layers. Every stage runs alone too, has a time limit, and
goes on after a failure; one that could not run has failed. Prints a table. The CUDA library comes from `make cuda`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpu_parts import parts, parts_27b
from gpu_times import prompts, requests, time_27b, time_35b

import gpu_load
from gpu_session import ROOT, Session, line, model
from support.operators.run import OPERATOR_TESTS
from trigraph.custom_ops import library_path
from trigraph.models.errors import TrigraphError
from trigraph.runtime import load
from trigraph.runtime.bench.load import Load
from trigraph.runtime.bench.random_tokens import RandomTokens
from trigraph.runtime.bench.sample import seconds
from trigraph.runtime.device.cuda.device import CudaDevice

RULE = {("qwen3.6-35b-a3b", 512): "123 to 139 by count", ("qwen3.6-35b-a3b", 4096): "980 to 1,110 by count"}
"""Expected of the scan alone: 516 cycles a token were measured with 218 instructions, now 178."""
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
"""Of compute-sanitizer."""


def kernels(session: Session) -> None:
    """Every kernel at the shapes of real models: rows alone against rows together, and its speed."""
    report = json.loads(session.run(session.kernels()))
    session.note("kernels", "copies on the device, GB/s", f"{report['copy_gb_s']:.0f}")
    session.note("kernels", "rows of a call", "1 / 4 / 8 / 16", "with (1): of one sequence")
    for timed in report["models"]:
        lines: dict[str, list[str]] = {}
        for row in timed["kernels"]:
            name = row["kernel"] + (" (1)" if row["sequences"] < row["rows"] else "")
            lines.setdefault(name, []).append(f"{row['us']:.1f}")
        for name, times in lines.items():
            session.note("kernels", f"{timed['model']}: {name}", " / ".join(times) + " us")


def delta_rule(session: Session) -> None:
    """The delta rule of a decode, a verify and prompts: tokens of one sequence, one after the other."""
    report = json.loads(session.run(session.kernels(), "--only", "delta rule", "--rows", "1,4,512,4096"))
    for timed in report["models"]:
        for row in timed["kernels"]:
            if row["kernel"] == "delta rule" and row["sequences"] == 1:
                what = f"{timed['model']}: {row['rows']} tokens, us"
                expected = RULE.get((timed["model"], row["rows"]), "")
                session.note("delta-rule", what, f"{row['us']:.1f}", expected)


def operators(session: Session) -> None:
    """Each operator against its NumPy reference, fused ones and draws too; rows alone and together; errors."""
    session.note("operators", "tests", session.test(*OPERATOR_TESTS))


def bits(session: Session) -> None:
    """Whole models: cuts of prompts, verifies, rejected tokens, drafts, forks and companions."""
    for graphs, name in (("0", "launch by launch"), ("1", "CUDA graphs")):
        session.note("bits", f"tests, {name}", session.test("promise/test_promise.py", graphs=graphs))


def sanitizer(session: Session) -> None:
    """Accesses outside buffers, races, barriers that are not met, reads of what nothing wrote: in all kernels."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise RuntimeError("compute-sanitizer is missing (it comes with the CUDA toolkit)")
    for tool in TOOLS:
        # racecheck is slow
        shapes = ("--rows", "3,20", "odd") if tool == "racecheck" else ("--rows", "1,8,20", "small", "odd")
        session.run(program, "--tool", tool, "--error-exitcode", "9", session.kernels(), "--bits", *shapes,
                    TRIGRAPH_SEPARATE_SCRATCH="1")  # fmt: skip
        session.note("sanitizer", tool, "clean")


def state(session: Session) -> None:
    """Fork and rollback."""
    engine = load(model(session, "qwen3.6-35b-a3b", 4), device="cuda", sequences=4, context=4096)
    sequence = engine.steps.new_sequence()
    engine.steps.prefill([sequence], [list(range(1000))])
    forks, accepts = [], []
    for _ in range(20):
        engine.steps.verify([sequence], [[1, 2, 3, 4]])
        accepts.append(_microseconds(lambda: engine.steps.keep(sequence, 0)))
        forks.append(_microseconds(lambda: engine.steps.release(engine.steps.fork(sequence))))
    session.note("state", "reject four tokens, us", f"{statistics.median(accepts):.0f}")
    session.note("state", "fork and release, us", f"{statistics.median(forks):.0f}")


def served(session: Session) -> None:
    """`trigraph serve` under the load of SGLang's cookbook, beside its figures for an H100 (FP8, three drafts)."""
    path = model(session, "qwen3.6-35b-a3b", session.layers)
    random = RandomTokens(100_000)
    with gpu_load.serving(path, "cuda", 8192 + 1024 + 64, 16) as port:
        gpu_load.served(port, Load.draw(random, 2, 8192, 32, 2))
        for clients, requests, aims in ((1, 4, ("147", "2.21", "")), (16, 32, ("", "", "1,970"))):
            found = gpu_load.served(port, Load.draw(random, requests, 8192, 1024, clients))
            values = (found.first_ms, found.ms_a_token, found.tokens_a_second)
            for what, value, theirs in zip(("first token, ms", "a token, ms", "tokens/s"), values, aims, strict=True):
                session.note("served", f"{clients} clients: {what}", f"{value:.2f}", theirs and f"SGLang's: {theirs}")
            session.note("served", f"{clients} clients: longest gap, ms", f"{found.longest_gap_ms:.1f}")


def soak(session: Session, piece: int) -> None:
    """A quarter of half an hour of mixed requests, after which as much device memory is in use as before."""
    engine = load(model(session, "qwen3.6-35b-a3b", 4), device="cuda", sequences=8, context=8192)
    device = engine.model.device
    assert isinstance(device, CudaDevice)

    def used() -> int:
        free, total = device.functions.free_memory()
        return total - free

    samples = gpu_load.mixed(engine, SOAKED, used, piece)
    grown = gpu_load.growth(samples)
    session.note(f"soak-{piece}", f"growth in {len(samples)} rounds, MB", f"{grown / 1e6:.1f}", "at most 4")
    if grown > 4e6:
        raise RuntimeError(f"device memory in use after each round, MB: {[round(it / 1e6) for it in samples]}")


SOAKED = 450
"""Seconds of a piece, so that a machine that is lent for ten minutes at a time can run it."""
STAGES: dict[str, tuple[Callable[[Session], None], int]] = {
    "kernels": (kernels, 90),
    "delta-rule": (delta_rule, 60),
    "sanitizer": (sanitizer, 120),
    "operators": (operators, 120),
    "bits": (bits, 180),
    "state": (state, 40),
    "parts": (parts, 60),
    "parts-27b": (parts_27b, 180),
    "time-35b": (time_35b, 190),
    "time-27b": (time_27b, 160),
    "prompts": (prompts, 150),
    "requests": (requests, 200),
    "served": (served, 480),
    **{f"soak-{piece}": (partial(soak, piece=piece), SOAKED + 100) for piece in (1, 2, 3, 4)},
}
"""And the seconds that each may take on an H100: 20 minutes in all up to `served`, without the build of gpu_kernels."""


def main() -> int:
    """Runs the stages asked for, or all; 1 when one failed, 2 when there is no GPU or no CUDA library."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)}; all by default")
    parser.add_argument("--layers", type=int, help="of the files that are timed; all of the model's by default")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu", help="where these files are kept")
    parser.add_argument("--program", type=Path, help="gpu_kernels, built already; it is built by default")
    parser.add_argument("--patience", type=float, default=1, help="a factor on each stage's time limit (1)")
    options = parser.parse_args()
    if unknown := set(options.stages) - set(STAGES):
        parser.error(f"no stage is called {', '.join(sorted(unknown))}")
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        print("error: nothing was run; no NVIDIA driver is installed (libcuda.so.1 is missing)")
        return 2
    try:
        library_path("cuda")
    except TrigraphError as error:
        print(f"error: nothing was run; {error}")
        return 2
    options.folder.mkdir(parents=True, exist_ok=True)
    session = Session(options.layers, options.folder, options.program)
    stages = options.stages or list(STAGES)
    failed = [name for name in stages if not _passes(session, name, options.patience)]
    if len(stages) > 1:
        print("\n" + "\n".join(map(line, session.rows)))
    if session.layers is not None:
        print(f"times are of {session.layers} layers, not of whole models")
    return int(bool(failed))


def _passes(session: Session, name: str, patience: float) -> bool:
    stage, limit = STAGES[name]
    started = time.monotonic()
    session.deadline = started + limit * patience
    try:
        stage(session)
    except Exception as error:
        session.note(name, "FAILED", str(error))
        return False
    session.note(name, "seconds", f"{time.monotonic() - started:.0f}")
    return True


def _microseconds(work: Callable[[], object]) -> float:
    return 1e6 * seconds(work)


if __name__ == "__main__":
    sys.exit(main())
