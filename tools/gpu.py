"""What only a machine with a GPU can tell, in eight minutes on an H100: `python tools/gpu.py [STAGE ...]`.

Bits, every kernel, steps and prompts of the 35B-A3B and the 27B as synthetic files, budgets, variants, profiles, and
llama.cpp beside. Prints each row as it comes, and at the end a table of predictions and measurements; both are written
after each stage, so that a run that is killed keeps them. A stage has a time limit, and one that fails or cannot run
does not stop the next. `make gpu-times` builds and runs it in a checkout; tools/gpu_pack.py packs all of this for a
machine that reaches no package index.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from gpu_expected import VARIANTS, expected, ratio
from gpu_runs import BITS, RUNS
from gpu_session import ROOT, MissingError, Row, Session, Stage
from gpu_stages import STAGES
from trigraph.custom_ops import library_path
from trigraph.models.errors import TrigraphError

MINUTES = 8
FILES = 47e9
"""Bytes of all synthetic models."""
LINE = "{:8} {:52} {:>24} {:>23} {:>29} {:>5}  {}"
ASKED = ("name", "memory.total", "compute_cap", "driver_version", "pcie.link.gen.max", "pcie.link.width.max")


def main() -> int:
    """Runs the stages asked for; 1 when one failed, 2 when there is no GPU or no library for it."""
    options = arguments()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # of whole models
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    shapes = tuple(filter(None, options.shapes.split(",")))
    session = Session(options.out, options.folder, options.layers, options.program, shapes, options.llama)
    for name in ("results.jsonl", "log.txt", "ncu.txt"):
        (session.out / name).unlink(missing_ok=True)
    if problem := missing() or unfit(session, options.architecture):
        print(f"error: nothing was run; {problem}")
        return 2
    wanted, end = options.stages or list(STAGES), time.monotonic() + 60 * options.minutes
    session.write(models(wanted))
    try:
        failed = [name for name in wanted if not passes(session, name, STAGES[name], options.patience, end)]
    finally:
        session.close()
        print(f"\n{table(session.rows)}", end="")
    print(f"All of this is in {session.out}; synthetic models are left in {session.folder}")
    if session.layers is not None:
        print(f"times are of {session.layers} layers, not of whole models")
    return int(bool(failed))


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, out, built = parser.add_argument, ROOT / "build" / "gpu", ROOT / "build" / "gpu_kernels" / "gpu_kernels"
    add("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)}; all by default")
    add("--minutes", type=float, default=MINUTES, help=f"of all stages together ({MINUTES})")
    add("--patience", type=float, default=1, help="a factor on each stage's time limit (1)")
    add("--out", type=place, default=out, help="the folder of results")
    add("--folder", type=place, default=roomy(out), help="where synthetic models are written; in memory if they fit")
    add("--layers", type=int, help="of these models; all of the model's by default")
    add("--program", type=place, default=built if built.exists() else None, help="gpu_kernels, of make gpu-kernels")
    add("--shapes", default="", help="models of gpu_kernels, comma-separated; real ones by default")
    add("--llama", type=place, help="a folder with llama.cpp's libraries for CUDA")
    add("--architecture", type=int, help="the GPU's that all was compiled for: 90 for compute capability 9.0")
    options = parser.parse_args()
    if unknown := set(options.stages) - set(STAGES):
        parser.error(f"no stage is called {', '.join(sorted(unknown))}")
    return options


def place(text: str) -> Path:
    """A path that programs in other folders find, too."""
    return Path(text).absolute()


def roomy(folder: Path) -> Path:
    """A folder in memory, if the models of a run fit there; else this one."""
    memory = Path("/dev/shm")
    return memory / "trigraph" if memory.is_dir() and shutil.disk_usage(memory).total > FILES else folder


def models(stages: Iterable[str]) -> Iterator[tuple[str, int | None]]:
    """Which models they need, and of how many layers, in the order of their needs."""
    for stage in stages:
        runs = [RUNS[stage]] if stage in RUNS else BITS.values() if stage == "bits" else []
        if stage == "variants":
            runs = [RUNS[variant.stage] for variant in VARIANTS if variant.stage in RUNS]
        yield from ((run.model, run.layers) for run in runs)


def missing() -> str | None:
    """What no stage can do without."""
    try:
        driver, version = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
        library_path("cuda")
    except OSError:
        return "no NVIDIA driver is installed (libcuda.so.1 is missing)"
    except TrigraphError as error:
        return str(error)
    asked = getattr(driver, "cuDriverGetVersion", None)  # a fake driver has it not
    if asked and not asked(ctypes.byref(version)) and version.value < 13000:
        return f"the driver is one for CUDA {version.value // 1000}; update it to one for CUDA 13"
    return None


def unfit(session: Session, architecture: int | None) -> str | None:
    """Notes what machine this is; why its GPU is not one for these libraries."""
    session.deadline = time.monotonic() + 20
    session.note("machine", time.strftime("%Y-%m-%d %H:%M"), os.cpu_count() or 0, text=f"CPUs, {platform.platform()}")
    session.note("machine", "Python", text=platform.python_version())
    try:
        found = [*session.lines("nvidia-smi", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader,nounits")]
    except RuntimeError as error:
        session.note("machine", "nvidia-smi: FAILED", text=str(error))
        return None
    values = dict(zip(ASKED, found[0].split(", "), strict=False))
    session.note("machine", "GPU", text=", ".join(f"{name} {value}" for name, value in values.items()))
    session.memory = int(values["memory.total"]) / 1024
    has = int(values["compute_cap"].replace(".", ""))
    if architecture is not None and (has // 10, 1) != (architecture // 10, has >= architecture):
        return f"this pack is for architecture {architecture}, and {values['name']} has {has}: see gpu_pack.py --help"
    return None


def passes(session: Session, name: str, stage: Stage, patience: float, end: float) -> bool:
    """Runs a stage, in what is left of the time of all."""
    started = time.monotonic()
    session.deadline = min(started + stage.seconds * patience, end)
    if session.deadline <= started:
        session.note(name, "SKIPPED", text="the time of all stages was over")
        return True
    try:
        stage.run(session, name)
    except MissingError as reason:
        session.note(name, "SKIPPED", text=str(reason))
        return True
    except Exception as error:
        session.note(name, "FAILED", text=f"{error or type(error).__name__}")
        return False
    finally:
        session.note(name, "seconds", time.monotonic() - started)
        (session.out / "table.txt").write_text(table(session.rows), encoding="utf-8")
    return True


def table(rows: list[Row]) -> str:
    """Predictions beside measurements, stage by stage."""
    lines = [LINE.format("stage", "", "before, H100", "predicted", "measured", "ratio", "predicted from").rstrip()]
    for _, of_stage in groupby(rows, key=lambda row: row.stage):
        for row in of_stage:
            known = expected(row.stage, row.what)
            measured = " / ".join(f"{figure:.4g}" for figure in row.figures)
            behind = " ".join(filter(None, (row.text, known.source)))
            beside = (known.before, known.now, measured, ratio(row.figures, known.now))
            lines.append(LINE.format(row.stage, row.what, *beside, behind).rstrip())
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
