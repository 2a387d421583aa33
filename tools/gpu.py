"""What only a machine with a GPU can tell, in eight minutes on an H100: `python tools/gpu.py [STAGE ...]`.

Bits, every kernel, steps and prompts of the 35B-A3B and the 27B as synthetic files, budgets, variants, profiles, and
llama.cpp beside. Prints a table of predictions and measurements, and writes each row as it comes, so that a run that is
killed keeps them. A stage has a time limit, and one that fails or cannot run does not stop the next. tools/gpu_pack.py
packs all of this for a machine that reaches no package index; `make gpu` builds and runs it in a checkout, with tests,
sanitizers and loads that last.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from gpu_expected import VARIANTS, expected, ratio
from gpu_session import ROOT, MissingError, Row, Session, Stage
from gpu_stages import RUNS, STAGES
from trigraph.custom_ops import library_path
from trigraph.models.errors import TrigraphError

MINUTES = 8
LINE = "{:8} {:52} {:>24} {:>23} {:>29} {:>5}  {}"


def main() -> int:
    """Runs the stages asked for; 1 when one failed, 2 when there is no GPU or no CUDA library."""
    stages = all_stages()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "stages", nargs="*", metavar="STAGE", help=f"of {', '.join(stages)}; by default {', '.join(STAGES)}"
    )
    parser.add_argument("--all", action="store_true", help="all stages, without the limit of --minutes")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"of all stages together ({MINUTES})")
    parser.add_argument("--patience", type=float, default=1, help="a factor on each stage's time limit (1)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", help="the folder of results")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "gpu", help="where synthetic models are written"
    )
    parser.add_argument("--layers", type=int, help="of these models; all of the model's by default")
    parser.add_argument("--program", type=Path, help="gpu_kernels, built already; it is built by default")
    parser.add_argument("--shapes", default="", help="models of gpu_kernels, comma-separated; real ones by default")
    parser.add_argument("--llama", type=Path, help="a folder with llama.cpp's libraries for CUDA")
    options = parser.parse_args()
    if unknown := set(options.stages) - set(stages):
        parser.error(f"no stage is called {', '.join(sorted(unknown))}")
    if problem := missing():
        print(f"error: nothing was run; {problem}")
        return 2
    shapes = tuple(filter(None, options.shapes.split(",")))
    session = Session(options.out, options.folder, options.layers, options.program, shapes, options.llama)
    wanted = options.stages or list(stages if options.all else STAGES)
    end = time.monotonic() + (float("inf") if options.all else 60 * options.minutes)
    for name in (*wanted, *(variant.stage for variant in VARIANTS if "variants" in wanted)):
        if name in RUNS:
            session.write(RUNS[name].model, RUNS[name].layers)
    failed = [name for name in wanted if not passes(session, name, stages[name], options.patience, end)]
    text = table(session.rows)
    (session.out / "table.txt").write_text(text, encoding="utf-8")
    print(f"\n{text}", end="")
    if session.layers is not None:
        print(f"times are of {session.layers} layers, not of whole models")
    return int(bool(failed))


def all_stages() -> Mapping[str, Stage]:
    """Those of a checkout, or of a pack, which has no tests."""
    if not (ROOT / "tests" / "support").is_dir():
        return STAGES
    from gpu_tests import STAGES as TESTS

    return {**STAGES, **TESTS}


def missing() -> str | None:
    """What no stage can do without."""
    try:
        ctypes.CDLL("libcuda.so.1")
        library_path("cuda")
    except OSError:
        return "no NVIDIA driver is installed (libcuda.so.1 is missing)"
    except TrigraphError as error:
        return str(error)
    return None


def passes(session: Session, name: str, stage: Stage, patience: float, end: float) -> bool:
    """Runs a stage, in what is left of the time of all."""
    started = time.monotonic()
    session.deadline = min(started + stage.seconds * patience, end)
    if session.deadline <= started:
        session.note(name, "SKIPPED", text="the time of all stages was over")
        return True
    try:
        stage.run(session)
    except MissingError as reason:
        session.note(name, "SKIPPED", text=str(reason))
        return True
    except Exception as error:
        session.note(name, "FAILED", text=f"{error or type(error).__name__}")
        return False
    session.note(name, "seconds", time.monotonic() - started)
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
