"""The stages of tools/gpu.py that a machine with nothing but a GPU runs in eight minutes, in order of their worth."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from gpu_expected import VARIANTS, Variant
from gpu_session import CLI, MODELS, NONE, ROOT, Environment, MissingError, Session, Stage


class Run(NamedTuple):
    """A model, where it lies, and what gpu_model.py does with it."""

    model: str
    work: str
    memory: float = 0
    """GiB that it may take on a GPU; 0: what is free."""
    device: str = "cuda"
    after: int = 4096
    """Tokens before a step."""
    kv_type: str = "f16"
    layers: int | None = None
    llama: str | None = None
    """Options of gpu_llama.py to do the same; None: it does nothing beside."""

    def options(self, layers: int | None) -> tuple[str, ...]:
        """Of gpu_model.py. A file of so few layers gets their share of the memory, beside 3 GiB for all else."""
        memory = self.memory if layers is None else 3 + (self.memory - 3) * layers / LAYERS[self.model]
        where = ("--device", self.device, "--after", str(self.after), "--kv-type", self.kv_type)
        return (*where, *(("--gpu-memory", str(int(memory * 2**30))) if self.memory else ()))


STEPS = "decode verify-2 verify-4 verify-8"
LAYERS = {"35b": 40, "27b": 64}
RUNS: Mapping[str, Run] = {
    "35b": Run(
        "35b", f"hash {STEPS} draft prompt-4096 sequences-8 sequences-16 state requests-1 requests-4 prompt-32768",
        llama=""),
    "12gb": Run(
        "35b", "hash prompt-2048 decode verify-4 requests-1 requests-4", 12, after=2048, llama="--host-experts 23"),
    "27b": Run("27b", f"hash {STEPS} draft prompt-4096 prompt-32768", llama=""),
    "profile": Run("35b", "profile"),
    "8gb": Run("35b", "hash prompt-2048 decode verify-4", 8, after=2048),
    "parts": Run("35b", "hash decode verify-4 prompt-4096", device="cuda:0,cuda:0"),
    "layers": Run("27b", "hash decode verify-4", 12, after=256),
    "few": Run("35b", "", layers=8),
    "few-q8_0": Run("35b", "", kv_type="q8_0", layers=8),
    "few-27b": Run("27b", "", layers=8),
}  # fmt: skip
"""By stage; the last three, which are loaded in seconds, are for variants alone."""

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


def bits(session: Session) -> None:
    """Each kernel's rows alone and together; the recorded bits of small models of text, images and residual streams."""
    kernels = json.loads(session.run(session.kernels(), "--bits", *session.shapes, status=1))
    rows = [row["bits"] for model in kernels["models"] for row in model["kernels"]]
    session.note("bits", "calls of kernels with the bits of rows alone, of", sum(rows), len(rows))
    report = json.loads(session.run(sys.executable, *CLI, "doctor", "--device", "cuda", "--json", status=1))
    (found,) = (finding for finding in report["findings"] if finding["kernels"] == "cuda")
    differs = f"differs in {len(found['differs'])} parts, first {', '.join(found['differs'][:2])}"
    told = "agrees" if found["agrees"] else found["problem"] or differs
    session.note("bits", "doctor: text, images, residual streams", text=told)
    if not (found["agrees"] and all(rows)):
        raise RuntimeError("bits differ")


def kernels(session: Session) -> None:
    """Every kernel at the shapes of both models."""
    session.note("kernels", "figures are us of calls with so many rows", 1, 4, 8, 16)
    _kernels(session, "kernels")
    prompts = ("delta rule", "experts", "gate and up")
    _kernels(session, "kernels", *(word for case in prompts for word in ("--only", case)), "--rows", "512,4096")


def _kernels(session: Session, stage: str, *options: str, name: str = "", environment: Environment = NONE) -> None:
    program = Path(environment.get("TRIGRAPH_LIBRARY_DIR", ""), "gpu_kernels")
    program = program if program.is_file() else session.kernels()
    report = json.loads(session.run(program, *options, *session.shapes, environment=environment))
    session.note(stage, f"{name}copies on the device, GB/s", report["copy_gb_s"])
    for model in report["models"]:
        lines: dict[str, dict[int, float]] = {}
        for row in model["kernels"]:
            one = ", one sequence" if row["sequences"] < row["rows"] <= 16 else ""
            lines.setdefault(f"{row['kernel']}{one}", {})[row["rows"]] = row["us"]
        for kernel, times in lines.items():
            short = next((name for name, geometry in MODELS.items() if geometry == model["model"]), model["model"])
            many = f", rows {' / '.join(map(str, times))}" if max(times) > 16 else ""
            session.note(stage, f"{name}{short}: {kernel}{many}", *times.values())


def model(session: Session, stage: str) -> None:
    """Times a run."""
    if stage == "profile" and not find_spec("torch"):
        raise MissingError("PyTorch is not installed")
    _time(session, stage, RUNS[stage], RUNS[stage].work.split())


def _time(
    session: Session, stage: str, run: Run, work: list[str], name: str = "", environment: Environment = NONE
) -> None:
    path = session.model(run.model, run.layers)
    options = run.options(session.layers)
    command = [sys.executable, str(ROOT / "tools" / "gpu_model.py"), str(path), *work, *options]
    for line in session.lines(*command, environment={"TRIGRAPH_CUDA_GRAPHS": "1"} | dict(environment)):
        row = json.loads(line)
        if name and row["what"].startswith(("seconds", "a token")):  # known of its stage
            continue
        session.note(stage, name + row["what"], *row["figures"], text=row["text"])
        if row["what"] == "hash" and session.hashes.setdefault(path, row["text"]) != row["text"]:
            raise RuntimeError("these are other bits than before")


def variants(session: Session) -> None:
    """Other ways, beside the present ones."""

    def compare(variant: Variant) -> None:
        environment = dict(variant.environment)
        if variant.defines:
            folder = Path(os.environ.get("TRIGRAPH_LIBRARY_DIR", ""), variant.folder)
            if not folder.is_dir():
                raise MissingError(f"there is no library with {variant.defines}")
            environment["TRIGRAPH_LIBRARY_DIR"] = str(folder)
        if variant.stage == "kernels":
            _kernels(session, "variants", *variant.work, name=f"{variant.name}, ", environment=environment)
        else:
            name = f"{variant.name}, {variant.stage}: "
            _time(session, "variants", RUNS[variant.stage], [*variant.work], name, environment)

    _each(session, "variants", {variant.name: partial(compare, variant) for variant in VARIANTS})


def ncu(session: Session) -> None:
    """What Nsight Compute counts of the dearest kernels; its pages are in ncu.txt."""
    if (program := shutil.which("ncu")) is None:
        raise MissingError("ncu is not installed")

    def count(what: str, name: str, kernel: str, case: str, rows: int) -> None:
        first = "6" if rows <= 16 else "2"  # launches that warm up
        chosen = ("-k", f"regex:^({kernel})$", "-s", first, "-c", "1", "--clock-control", "none", "--page", "details")
        shape = session.shapes[:1] or (MODELS[name],)
        called = (str(session.kernels()), "--only", case, "--rows", str(rows), *shape)
        page = session.run(program, "--set", "full", *chosen, *called)
        with (session.out / "ncu.txt").open("a", encoding="utf-8") as file:
            file.write(page)
        for counter, unit, value in COUNTERS.findall(page):
            session.note("ncu", f"{what}: {counter}, {unit}", float(value.replace(",", "")))

    cases = {
        f"{name}: {kernel.split('|')[0]}, {rows} rows": (name, kernel, case, rows)
        for name, kernel, case, rows in DEAREST
    }
    _each(session, "ncu", {what: partial(count, what, *chosen) for what, chosen in cases.items()})


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


def llama(session: Session) -> None:
    """llama.cpp beside."""
    if session.llama is None or not session.llama.is_dir():
        raise MissingError("llama.cpp's libraries are not there; --llama names their folder")

    def beside(name: str, run: Run) -> None:
        words = [word for word in run.work.split() if re.match("decode|verify|prompt|sequences", word)]
        command = (sys.executable, ROOT / "tools" / "gpu_llama.py", session.llama or "", session.model(run.model))
        for line in session.lines(*command, *words, *(run.llama or "").split()):
            row = json.loads(line)
            session.note("llama", f"{name}: {row['what']}", *row["figures"])

    runs = {name: run for name, run in RUNS.items() if run.llama is not None}
    _each(session, "llama", {name: partial(beside, name, run) for name, run in runs.items()})


STAGES: Mapping[str, Stage] = {
    "bits": Stage(bits, 90),
    "kernels": Stage(kernels, 60),
    "35b": Stage(partial(model, stage="35b"), 90),
    "12gb": Stage(partial(model, stage="12gb"), 60),
    "27b": Stage(partial(model, stage="27b"), 80),
    "variants": Stage(variants, 90),
    "profile": Stage(partial(model, stage="profile"), 60),
    "8gb": Stage(partial(model, stage="8gb"), 45),
    "ncu": Stage(ncu, 90),
    "parts": Stage(partial(model, stage="parts"), 40),
    "layers": Stage(partial(model, stage="layers"), 40),
    "llama": Stage(llama, 90),
}
