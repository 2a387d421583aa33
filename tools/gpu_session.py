"""A run of tools/gpu.py: what its stages find, written as it comes, and the programs that they call."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CLI = (sys.executable, "-c", "from trigraph.runtime.cli.app import main; main()")
MODELS = {"35b": "qwen3.6-35b-a3b", "27b": "qwen3.6-27b"}
"""Geometries by the names that stages have for them."""
DYING = 5.0
"""Seconds that a program has to end in."""

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

    run: Callable[[Session, str], None]
    """Takes its name, too."""
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
    """gpu_kernels; None: it is not there."""
    shapes: tuple[str, ...] = ()
    """The names of its models; none: real ones."""
    llama: Path | None = None
    """A folder with llama.cpp's libraries."""
    memory: float = inf
    """GiB of the GPU."""
    rows: list[Row] = field(default_factory=list)
    deadline: float = inf
    """Of the stage that runs."""
    switches: dict[str, str] = field(default_factory=dict)
    """Variables without which bits were wrong."""
    hashes: dict[tuple[Path, str], str] = field(default_factory=dict)
    """Of what models compute, by the type of keys and values, wherever their layers and experts lie."""
    _writer: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        for folder in (self.out, self.folder):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def left(self) -> float:
        """Seconds of the stage that runs."""
        return self.deadline - time.monotonic()

    def note(self, stage: str, what: str, *figures: float, text: str = "") -> None:
        """A row of the table, shown and written at once."""
        self.rows.append(Row(stage, what, figures, text))
        print(f"{stage}: {what}:", *(f"{figure:.4g}" for figure in figures), text, flush=True)
        with (self.out / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.rows[-1]._asdict()) + "\n")

    def lines(self, *command: str | Path, environment: Environment = NONE) -> Iterator[str]:
        """What a command prints, a line as it comes. It has what is left of the stage's time.

        Raises RuntimeError where it is not done, or ends with a status other than 0. All that it has started ends, too.
        """
        begin, words = time.monotonic(), [str(word) for word in command]
        end = max(self.deadline, begin + 1)
        path = os.pathsep.join(filter(None, (str(ROOT / "tests"), os.environ.get("PYTHONPATH"))))
        own = {"PYTHONPATH": path, "PYTHONFAULTHANDLER": "1", "XDG_CACHE_HOME": str(self.folder)}
        variables = {**os.environ, **own, **self.switches, **environment}
        name, last = Path(words[0]).name, ""
        with (self.out / "log.txt").open("a+b") as log:
            log.write(f"$ {shlex.join(words)}\n".encode())
            log.flush()
            before = log.tell()
            try:
                process = subprocess.Popen(
                    words, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise RuntimeError(str(error)) from None
            try:
                assert process.stdout is not None
                for last in _lines(process.stdout, end):
                    yield last
                process.wait(max(0, end - time.monotonic()))
            except (TimeoutError, subprocess.TimeoutExpired):
                raise RuntimeError(f"{name} was not done after {end - begin:.0f} s") from None
            finally:
                ended(process)
            log.seek(before)
            said = log.read().decode(errors="replace").strip().splitlines() or [last]
        if process.returncode:
            raise RuntimeError(f"{name} ended with status {process.returncode}: {said[-1]}")

    def write(self, models: Iterable[tuple[str, int | None]]) -> None:
        """Begins to write synthetic models, given their names and layers, one behind the other."""
        files = {self.path(*model): model for model in models}
        commands = [
            shlex.join([*CLI, "synth", MODELS[name], str(path), *(("--layers", str(layers)) if layers else ())])
            for path, (name, few) in files.items()
            if not path.exists()
            for layers in [self.layers or few]
        ]
        with (self.out / "synth.txt").open("wb") as log:
            words = ["sh", "-c", " && ".join(commands) or "true"]
            self._writer = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)

    def path(self, name: str, layers: int | None = None) -> Path:
        """Of the file of a synthetic model."""
        return self.folder / f"{MODELS[name]}-{self.layers or layers or 'all'}.gguf"

    def model(self, name: str, layers: int | None = None) -> Path:
        """The same, when it is there. Raises RuntimeError where it does not come."""
        path, over = self.path(name, layers), False
        while not path.exists():  # it appears when it is whole
            if over or self.left <= 0:
                said = (self.out / "synth.txt").read_text(errors="replace").strip().split("\n")
                raise RuntimeError(f"{path.name} was not written: {said[-1] or 'it takes longer'}")
            over = self._writer is None or self._writer.poll() is not None
            time.sleep(0.1)
        return path

    def close(self) -> None:
        """Ends what is still written."""
        if self._writer is not None:
            ended(self._writer)


def _lines(output: IO[bytes], end: float) -> Iterator[str]:
    """Of a pipe, as they come, also the last one where it is cut. Raises TimeoutError at `end`."""
    rest, data = b"", b"at first"
    while data:
        if not select.select([output], [], [], max(0, end - time.monotonic()))[0]:
            raise TimeoutError
        data = os.read(output.fileno(), 1 << 16)
        *whole, rest = (rest + data).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    if rest:
        yield rest.decode(errors="replace")


def ended(process: subprocess.Popen[bytes]) -> None:
    """Ends a program and those that it has started. Python's tell first where they were.

    One that a driver holds is left behind.
    """
    for sent in (signal.SIGABRT, signal.SIGKILL) if process.poll() is None else (signal.SIGKILL,):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with suppress(subprocess.TimeoutExpired):
            process.wait(DYING)
