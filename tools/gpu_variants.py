"""Libraries and settings that only times on a GPU can decide between: whole steps of one beside the other.

Where there is nvcc, `python tools/gpu_variants.py` builds the libraries, which needs no GPU. `python tools/gpu.py
variants` then times them all on one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_session import CLI, ROOT, Session, model
from support.sass import tool
from trigraph.custom_ops import library_path

LIBRARIES = {
    "early": (),
    "no-early": ("-DTRIGRAPH_EARLY_ROWS=0",),
    "no-early-pass": ("-DTRIGRAPH_EARLY_ROWS=0", "-DTRIGRAPH_PASS_WITHOUT_ROWS=true"),
}
"""By name, what the compiler is told: launches of one and two rows begin early, or not, and then with a pass without
rows in products of few rows, or not."""
SETTINGS = {"": {}, "+sm90": {"TRIGRAPH_SM90_KERNELS": "1"}}
"""Variables of the first library's runs: of the others, times are of the kernels that are taken by default."""
LAYERS, TURNS = 8, 2
TIMED = (("decode", 1), ("verify", 2), ("verify", 4))


def variants(session: Session) -> None:
    """Decodes and verifies of the 35B-A3B with each library, in turns; the first one is what users have."""
    path = model(session, "qwen3.6-35b-a3b", LAYERS)
    kinds = list(_kinds(session.folder / "variants"))
    if len(kinds) < len(LIBRARIES):
        raise RuntimeError("libraries are missing; run tools/gpu_variants.py before, here or where there is nvcc")
    times: dict[tuple[str, str, int], list[float]] = {}
    for _ in range(TURNS):
        for name, variables in kinds:
            command = (sys.executable, *CLI, "bench", path, "--device", "cuda", "--json", "-p", "4096")
            report = json.loads(session.run(*command, TRIGRAPH_CUDA_GRAPHS="1", **variables))
            for row in report["results"]:
                times.setdefault((name, row["name"], row["k"]), []).append(row["median_ms"])
    first = kinds[0][0]
    for name, _ in kinds:
        for step, tokens in TIMED:
            found = times[name, step, tokens]
            value = " / ".join(f"{ms:.3f}" for ms in found) + " ms"
            share = statistics.mean(found) / statistics.mean(times[first, step, tokens])
            session.note("variants", f"{name}: {step} of {tokens}", value, "" if name == first else f"x {share:.3f}")


def _kinds(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and variables of what is timed: libraries that are there, the first one with all settings."""
    for name in LIBRARIES:
        if not (folder / name).is_dir():
            continue
        for setting, variables in SETTINGS.items():
            if not setting or name == next(iter(LIBRARIES)):
                yield name + setting, {"TRIGRAPH_LIBRARY_DIR": str(folder / name)} | variables


def build(session: Session, architecture: str) -> None:
    """The libraries, each in a folder with the CPU's."""
    nvcc = tool("nvcc")
    if nvcc is None:
        raise RuntimeError("nvcc is missing; the extra sass has it (make .venv/.sass)")
    cmake = shutil.which("cmake", path=os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))) or "cmake"
    host = library_path("cpu")
    for name, flags in LIBRARIES.items():
        started = time.monotonic()
        work, out = session.folder / "made" / name, session.folder / "variants" / name
        options = [f"-DCMAKE_CUDA_COMPILER={nvcc}", f"-DCMAKE_CUDA_ARCHITECTURES={architecture}-real"]
        options += ["-DCMAKE_BUILD_TYPE=Release", "-DTRIGRAPH_CUDA=ON", "-DCMAKE_SHARED_LINKER_FLAGS=-s"]
        options += [f"-DCMAKE_CUDA_FLAGS={' '.join(flags)}"]
        session.run(cmake, "-S", ROOT / "custom_ops", "-B", work, *options, limit=120, CUDACXX=nvcc)
        jobs = str(os.cpu_count() or 1)
        session.run(cmake, "--build", work, "--target", "trigraph_cuda", "--parallel", jobs, limit=3600)
        out.mkdir(parents=True, exist_ok=True)
        shutil.copy(host, out)
        shutil.copy(work / "libtrigraph_cuda.so", out)
        print(f"{out} ({time.monotonic() - started:.0f} s)", flush=True)


def main() -> None:
    """Builds the libraries."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu", help="as of tools/gpu.py")
    parser.add_argument("--architecture", default="90", help="of the GPU, without its point (90)")
    options = parser.parse_args()
    build(Session(None, options.folder.absolute(), None), options.architecture)


if __name__ == "__main__":
    main()
