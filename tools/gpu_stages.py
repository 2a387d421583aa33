"""The stages of tools/gpu.py that a machine with nothing but a GPU runs in eight minutes, in order of their worth."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_expected import VARIANTS, Variant
from gpu_runs import BITS, RUNS, Run, environment_of, parsed, time_run
from gpu_session import MODELS, NONE, Environment, MissingError, Session, Stage

DEAREST = (
    ("35b", "few_experts", "mixture of experts", 1),
    ("35b", "few_experts", "mixture of experts", 4),
    ("35b", "normed_products|normed_alone", "norm and delta rule's projections", 1),
    ("35b", "scan_one", "delta rule", 1),
    ("35b", "attend_few", "attention", 1),
    ("35b", "wide_tiles", "experts", 4096),
    ("35b", "scan_many", "delta rule", 1024),
    ("35b", "attend", "attention", 1024),
    ("27b", "wide_tiles", "gate and up", 1024),
    ("27b", "quantised_products|few_products|normed_products", "gate and up", 1),
)
"""The kernels that most of the time goes to: of which model, their names, the case of gpu_kernels, and its rows."""
COUNTERS = re.compile(
    r"^\s+(Duration|DRAM Throughput|L2 Cache Throughput|Executed Ipc Active|Registers Per Thread|Executed Instructions)"
    r"\s+(\S+)\s+([\d.,]+)$", re.MULTILINE)  # fmt: skip
"""Lines of ncu's page of details."""
FORBIDDEN = "ERR_NVGPUCTRPERM"
"""What ncu says where only an administrator may read counters."""
RECORDED = """
import json, pathlib, tempfile
from trigraph.runtime.doctor.examine import compute, make_packages, recorded_bits
with tempfile.TemporaryDirectory() as folder:
    found = compute("cuda", make_packages(pathlib.Path(folder)))
print(json.dumps([f"{part} of {model}" for bits in found.values() for model, parts in recorded_bits().items()
                  for part, digest in parts.items() if bits[model].get(part) != digest]))
"""
"""What `trigraph doctor` does on a GPU, without the instruction sets of the CPU: text, images, residual streams."""
FIRST, AGAIN = 1 / 5, 1 / 12
"""Of the time for bits, what a check may take, and what it may take again, also with a variant."""


def bits(session: Session, stage: str) -> None:
    """Recorded bits of small models; those of eight layers wherever they lie; each kernel's rows alone and together.

    Where they are wrong, a variant that makes them right serves all stages behind.
    """
    checks: dict[str, Callable[[Environment], None]] = {"recorded bits": partial(_recorded, session)}
    for where, run in BITS.items():
        checks[f"eight layers, {where}"] = partial(time_run, session, stage, run, "hash", f"{where}: ")
    checks["rows of kernels alone and together"] = partial(_rows_alone, session, stage)
    ways, wrong, whole = _ways(), list[str](), session.left
    for what, check in checks.items():
        try:
            name = _right(session, stage, what, check, ways, whole)
        except MissingError as reason:
            session.note(stage, f"{what}: SKIPPED", text=str(reason))
            continue
        if name is None:  # no variant helps the others
            ways = {VARIANTS[0].name: NONE}
        if name != VARIANTS[0].name:
            wrong.append(f"{what} (right: {name or 'with no variant'})")
    if wrong:
        raise RuntimeError(f"wrong as it is: {', '.join(wrong)}")


def _right(
    session: Session, stage: str, what: str, check: Callable[[Environment], None], ways: Mapping[str, Environment],
    whole: float,
) -> str | None:  # fmt: skip
    """The first way in which a check passes; if that is a variant, its variables are set from then on."""
    end = session.deadline
    for name, environment in ways.items():
        session.deadline = min(end, time.monotonic() + whole * (FIRST if name == VARIANTS[0].name else AGAIN))
        try:
            check(environment)
        except RuntimeError as error:
            session.note(stage, f"{what}, {name}: FAILED", text=str(error))
            continue
        finally:
            session.deadline = end
        session.note(stage, f"{what}, {name}", text="agrees")
        session.switches.update(environment)
        return name
    return None


def _ways() -> Mapping[str, Environment]:
    """The present way, twice, and those of variants whose library is here, by their names."""
    found: dict[str, Environment] = {VARIANTS[0].name: NONE, f"{VARIANTS[0].name}, again": NONE}
    for variant in VARIANTS:
        with suppress(MissingError):
            if (environment := environment_of(variant)) not in found.values():
                found[variant.name] = environment
    return found


def _recorded(session: Session, environment: Environment) -> None:
    (line,) = session.lines(sys.executable, "-c", RECORDED, environment=environment)
    if differs := parsed(line):
        raise RuntimeError(f"{len(differs)} differ, first {', '.join(differs[:2])}")


def _rows_alone(session: Session, stage: str, environment: Environment) -> None:
    found = dict[str, bool]()
    try:
        for row in _rows(session, "--bits", *(session.shapes or ("small", "odd")), environment=environment):
            found[f"{row['kernel']} of {row['model']}, {row['rows']} in {row['sequences']}"] = row["bits"]
    finally:
        wrong = ", ".join(what for what, right in found.items() if not right)
        session.note(
            stage, "calls of kernels with the bits of rows alone, of", sum(found.values()), len(found), text=wrong
        )


def kernels(session: Session, stage: str) -> None:
    """Every kernel at the shapes of both models."""
    session.note(stage, "figures are us of calls with so many rows", 1, 4, 8, 16)
    _kernels(session, stage, *session.shapes)
    prompts = ("delta rule", "experts", "gate and up")
    cases = (word for case in prompts for word in ("--only", case))
    _kernels(session, stage, *cases, "--rows", "512,4096", *session.shapes)


def _kernels(session: Session, stage: str, *options: str, name: str = "", environment: Environment = NONE) -> None:
    case, times, wrong = "", dict[str, dict[int, float]](), dict[str, list[int]]()

    def note() -> None:
        for what, by_rows in times.items():
            many = f", rows {' / '.join(map(str, by_rows))}" if max(by_rows) > 16 else ""
            told = f"bits differ, rows {wrong[what]}" if what in wrong else ""
            session.note(stage, f"{name}{what}{many}", *by_rows.values(), text=told)
        times.clear()

    try:
        for row in _rows(session, *options, environment=environment):
            if not case:
                session.note(stage, f"{name}copies on the device, GB/s", row["copies"])
            short = next((name for name, geometry in MODELS.items() if geometry == row["model"]), row["model"])
            if case != (case := f"{short}: {row['kernel']}"):
                note()
            what = f"{case}{', one sequence' if row['sequences'] < row['rows'] <= 16 else ''}"
            times.setdefault(what, {})[row["rows"]] = row["us"]
            if not row["bits"]:
                wrong.setdefault(what, []).append(row["rows"])
    finally:
        note()


def _rows(session: Session, *options: str, environment: Environment = NONE) -> Iterator[dict[str, Any]]:
    """What gpu_kernels finds of each call, as it comes, with its model, and how fast copies are."""
    if session.program is None:
        raise MissingError("gpu_kernels is not built; `make gpu-kernels` builds it, and --program names it")
    program = Path(environment.get("TRIGRAPH_LIBRARY_DIR", ""), "gpu_kernels")
    program, of_all = program if program.is_file() else session.program, dict[str, Any]()
    for line in session.lines(program, *options, environment=environment):
        if found := re.search(r'"copy_gb_s": ([\d.]+)', line):
            of_all["copies"] = float(found[1])
        elif found := re.search(r'"model": "([^"]+)"', line):
            of_all["model"] = found[1]
        elif found := re.search(r'\{"kernel".*?\}', line):
            yield {**of_all, **json.loads(found[0])}


def model(session: Session, stage: str) -> None:
    """Times a run."""
    if stage == "profile" and not find_spec("torch"):
        raise MissingError("PyTorch is not installed")
    time_run(session, stage, RUNS[stage], RUNS[stage].work)


def variants(session: Session, stage: str) -> None:
    """Other ways, beside the present ones."""

    def compare(variant: Variant) -> None:
        environment = environment_of(variant)
        if variant.stage == "kernels":
            _kernels(session, stage, *variant.work, name=f"{variant.name}, ", environment=environment)
        else:
            name = f"{variant.name}, {variant.stage}: "
            time_run(session, stage, RUNS[variant.stage], " ".join(variant.work), name, environment)

    _each(session, stage, {variant.name: partial(compare, variant) for variant in VARIANTS})


def ncu(session: Session, stage: str) -> None:
    """What Nsight Compute counts of the dearest kernels; its pages are in ncu.txt."""
    if (program := shutil.which("ncu")) is None or session.program is None:
        raise MissingError("ncu is not installed" if program is None else "gpu_kernels is not built")

    def count(what: str, name: str, kernel: str, case: str, rows: int) -> None:
        first = "6" if rows <= 16 else "2"  # launches that warm up
        chosen = ("-k", f"regex:^({kernel})$", "-s", first, "-c", "1", "--clock-control", "none", "--page", "details")
        shape, page, why = session.shapes[:1] or (MODELS[name],), f"# {what}\n", "it was not launched"
        called = (session.program or "", "--only", case, "--rows", str(rows), *shape)
        try:
            for line in session.lines(program, "--set", "full", *chosen, *called):
                page += line + "\n"
        except RuntimeError as error:
            why = str(error)
        with (session.out / "ncu.txt").open("a", encoding="utf-8") as file:
            file.write(page)
        if FORBIDDEN in page + why:
            raise PermissionError(f"the driver lets only administrators read counters ({FORBIDDEN})")
        if not (found := COUNTERS.findall(page)):
            raise RuntimeError(f"nothing was counted; {why}")
        for counter, unit, value in found:
            session.note(stage, f"{what}: {counter}, {unit}", float(value.replace(",", "")))

    cases = {f"{case[0]}: {case[1].split('|')[0]}, {case[3]} rows": case for case in DEAREST}
    _each(session, stage, {what: partial(count, what, *case) for what, case in cases.items()})


def _each(session: Session, stage: str, calls: Mapping[str, Callable[[], None]]) -> None:
    """Calls all, also after one that fails or cannot run. None but the last may take more than half of the time left.

    Raises RuntimeError that names those that failed.
    """
    failed, end = [], session.deadline
    for left, (name, call) in zip(range(len(calls))[::-1], calls.items(), strict=True):
        session.deadline = end if not left else (time.monotonic() + end) / 2
        try:
            call()
        except MissingError as reason:
            session.note(stage, f"{name}: SKIPPED", text=str(reason))
        except RuntimeError as error:
            session.note(stage, f"{name}: FAILED", text=str(error))
            failed.append(name)
    if failed:
        raise RuntimeError(", ".join(failed))


def llama(session: Session, stage: str) -> None:
    """llama.cpp beside."""
    if (folder := session.llama) is None or not folder.is_dir():
        raise MissingError("llama.cpp's libraries are not there; --llama names their folder")

    def beside(name: str, run: Run) -> None:
        words = [word for word in run.work.split() if re.match("decode|verify|prompt|sequences", word)]
        words += ("--after", str(run.after), "--llama", str(folder), *(run.llama or "").split())
        time_run(session, stage, run, "", f"{name}: ", words=words)

    runs = {name: run for name, run in RUNS.items() if run.llama is not None}
    _each(session, stage, {name: partial(beside, name, run) for name, run in runs.items()})


STAGES: Mapping[str, Stage] = {
    "bits": Stage(bits, 180),
    "35b": Stage(model, 90),
    "12gb": Stage(model, 60),
    "27b": Stage(model, 60),
    "kernels": Stage(kernels, 75),
    "variants": Stage(variants, 120),
    "profile": Stage(model, 45),
    "ncu": Stage(ncu, 90),
    "8gb": Stage(model, 40),
    "parts": Stage(model, 40),
    "layers": Stage(model, 40),
    "requests": Stage(model, 40),
    "llama": Stage(llama, 90),
    "long": Stage(model, 60),
}
