"""A run of tools/gpu.py: what its stages find, written as it comes, and the programs that they call."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CLI = ("-c", "from trigraph.runtime.cli.app import main; main()")
MODELS = {"35b": "qwen3.6-35b-a3b", "27b": "qwen3.6-27b"}
"""Geometries by the names that stages have for them."""


Environment = Mapping[str, str]
NONE: Environment = MappingProxyType({})


class MissingError(Exception):
    """A stage needs what is not on this machine."""


class Row(NamedTuple):
    """What a stage has found."""

    stage: str
    what: str
    figures: tuple[float, ...] = ()
    text: str = ""
    """Beside figures, or in their place."""


class Stage(NamedTuple):
    """A part of a run: one that raises has failed."""

    run: Callable[[Session], None]
    seconds: int
    """That it may take on an H100."""


@dataclass
class Session:
    """The options of a run, and what it has found."""

    out: Path
    """The folder of results: a row a line in `results.jsonl`, and what programs said in `log.txt`."""
    folder: Path
    """Of synthetic models."""
    layers: int | None = None
    """Of these; None: all."""
    program: Path | None = None
    """gpu_kernels, where it is built already."""
    shapes: tuple[str, ...] = ()
    """The names of its models; none: real ones."""
    llama: Path | None = None
    """A folder with llama.cpp's libraries."""
    rows: list[Row] = field(default_factory=list)
    deadline: float = inf
    """Of the stage that runs."""
    hashes: dict[Path, str] = field(default_factory=dict)
    """Of what models compute, wherever their layers and experts lie."""
    _models: dict[tuple[str, int | None], Future[Path]] = field(default_factory=dict)
    _writer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def __post_init__(self) -> None:
        for folder in (self.out, self.folder):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def left(self) -> float:
        """Seconds of the stage that runs."""
        return min(max(1.0, self.deadline - time.monotonic()), threading.TIMEOUT_MAX)

    def note(self, stage: str, what: str, *figures: float, text: str = "") -> None:
        """A row of the table, shown and written at once."""
        self.rows.append(Row(stage, what, figures, text))
        print(f"{stage}: {what}:", *(f"{figure:.4g}" for figure in figures), text, flush=True)
        with (self.out / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.rows[-1]._asdict()) + "\n")

    def run(self, *command: str | Path, environment: Environment = NONE, limit: float = inf, status: int = 0) -> str:
        """What a command prints; see `lines`."""
        return "".join(self.lines(*command, environment=environment, limit=limit, status=status))

    def lines(
        self, *command: str | Path, environment: Environment = NONE, limit: float = inf, status: int = 0
    ) -> Iterator[str]:
        """What a command prints, a line as it comes. It has `limit` seconds, or what is left of the stage's.

        Raises RuntimeError where it is not done, or ends with a status that is neither 0 nor `status`.
        """
        limit = min(limit, self.left)
        path = os.pathsep.join(filter(None, (str(ROOT / "tests"), os.environ.get("PYTHONPATH"))))
        variables = {**os.environ, "PYTHONPATH": path, **environment}
        words, late = [str(word) for word in command], threading.Event()
        with (self.out / "log.txt").open("a+b") as log:
            log.write(f"$ {shlex.join(words)}\n".encode())
            log.flush()
            begun = log.tell()
            process = subprocess.Popen(
                words, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
            timer = threading.Timer(limit, _end, (process, late))
            timer.start()
            try:
                assert process.stdout is not None
                yield from process.stdout
                process.wait()
            finally:
                timer.cancel()
                if process.poll() is None:
                    _end(process, threading.Event())
            log.seek(begun)
            said = log.read().decode(errors="replace").strip().splitlines()
        if late.is_set():
            raise RuntimeError(f"{Path(words[0]).name} was not done after {limit:.0f} s")
        if process.returncode not in (0, status):
            raise RuntimeError(f"{Path(words[0]).name} ended with status {process.returncode}: {' '.join(said[-1:])}")

    def kernels(self) -> Path:
        """The program gpu_kernels. It is built where none was given, which the stage's time does not count."""
        if self.program is None:
            cmake = shutil.which("cmake", path=os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"])))
            out, started = self.folder / "gpu_kernels", time.monotonic()
            options = ("-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CUDA_ARCHITECTURES=native")
            self.run(cmake or "cmake", "-S", ROOT / "tests" / "cuda" / "gpu_kernels", "-B", out, *options, limit=60)
            jobs = str(os.cpu_count() or 1)
            self.run(cmake or "cmake", "--build", out, "--target", "gpu_kernels", "--parallel", jobs, limit=1800)
            self.program = out / "gpu_kernels"
            self.deadline += time.monotonic() - started
        return self.program

    def write(self, name: str, layers: int | None = None) -> Future[Path]:
        """Begins to write a synthetic model, once, behind those that were asked for before: its file."""
        layers = self.layers or layers
        if (key := (name, layers)) not in self._models:
            path = self.folder / f"{MODELS[name]}-{layers or 'all'}.gguf"
            self._models[key] = self._writer.submit(self._written, MODELS[name], path, layers)
        return self._models[key]

    def model(self, name: str, layers: int | None = None) -> Path:
        """The file of a synthetic model, when it is there."""
        return self.write(name, layers).result(self.left)

    def _written(self, geometry: str, path: Path, layers: int | None) -> Path:
        if not path.exists():
            few = () if layers is None else ("--layers", str(layers))
            self.run(sys.executable, *CLI, "synth", geometry, path, *few, limit=300)
        return path


def _end(process: subprocess.Popen[str], late: threading.Event) -> None:
    """Ends a program, and those that it has started."""
    late.set()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def summary(output: str, known: frozenset[str] | set[str]) -> str:
    """pytest's last line, when something ran and all reasons of what was left out are known."""
    line = next((line for line in reversed(output.splitlines()) if "passed" in line), None)
    reasons = set(re.findall(r"^SKIPPED \[\d+\] \S+: (.*)", output, re.MULTILINE))
    if line is None or reasons - known:
        raise RuntimeError(f"tests did not run: {', '.join(reasons) or 'none passed'}")
    return line
