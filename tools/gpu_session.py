"""A run of tools/gpu.py: its options, what its stages found, and the programs that they call."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.operators.run import SKIPPED_ON_DEVICES

ROOT = Path(__file__).resolve().parents[1]
CLI = ("-c", "from trigraph.runtime.cli.app import main; main()")


@dataclass
class Session:
    """The options of a run, and what it found: stage, what was measured, value, aim."""

    layers: int | None
    folder: Path
    program: Path | None
    """gpu_kernels, where it is built already."""
    rows: list[tuple[str, str, str, str]] = field(default_factory=list)
    deadline: float = 0
    """Of the stage that runs."""

    def note(self, stage: str, what: str, value: str, aim: str = "") -> None:
        """One line of the table, shown at once too."""
        self.rows.append((stage, what, value, aim))
        print(line(self.rows[-1]), flush=True)

    def run(self, *command: str | Path, limit: float | None = None, **environment: str) -> str:
        """What a command prints. It has `limit` seconds, or what is left of the stage's.

        It runs in the checkout; its output is shown when it fails.
        """
        variables = os.environ | environment
        path = [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        words = [str(part) for part in command]
        limit = max(1.0, self.deadline - time.monotonic()) if limit is None else limit
        try:
            done = subprocess.run(
                words, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=limit
            )
        except subprocess.TimeoutExpired as late:
            print(*(_text(part)[-4000:] for part in (late.stdout, late.stderr) if part), sep="\n", flush=True)
            raise RuntimeError(f"{Path(command[0]).name} was not done after {limit:.0f} s") from None
        if done.returncode:
            print(done.stdout[-8000:], done.stderr[-4000:], sep="\n", flush=True)
            raise RuntimeError(f"{Path(command[0]).name} ended with status {done.returncode}")
        return done.stdout

    def test(self, *names: str, graphs: str = "1") -> str:
        """Runs files of tests on the CUDA library; how many passed."""
        files = [str(ROOT / "tests" / name) for name in names]
        command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files)
        return _summary(self.run(*command, TRIGRAPH_TEST_LIBRARY="cuda", TRIGRAPH_CUDA_GRAPHS=graphs))

    def kernels(self) -> Path:
        """The program gpu_kernels. It is built where none was given, which the stage's time does not count."""
        if self.program is None:
            cmake = shutil.which("cmake", path=os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"])))
            out, started = self.folder / "gpu_kernels", time.monotonic()
            options = ("-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CUDA_ARCHITECTURES=native")
            self.run(cmake or "cmake", "-S", ROOT / "tests" / "cuda" / "gpu_kernels", "-B", out, *options, limit=60)
            self.run(cmake or "cmake", "--build", out, "--parallel", str(os.cpu_count() or 1), limit=1800)
            self.program = out / "gpu_kernels"
            self.deadline += time.monotonic() - started
        return self.program


def model(session: Session, geometry: str, layers: int | None) -> Path:
    """A synthetic file of a published geometry, written once."""
    path = session.folder / f"{geometry}-{layers or 'all'}.gguf"
    if not path.exists():
        few = () if layers is None else ("--layers", str(layers))
        session.run(sys.executable, *CLI, "synth", geometry, path, *few)
    return path


def line(row: tuple[str, str, str, str]) -> str:
    """Of the table."""
    return "{:10} {:52} {:>24}  {}".format(*row).rstrip()


def _text(output: str | bytes) -> str:
    return output if isinstance(output, str) else output.decode(errors="replace")


def _summary(output: str) -> str:
    """pytest's last line, when something ran and all that was left out is known."""
    line = next((line for line in reversed(output.splitlines()) if "passed" in line), None)
    reasons = set(re.findall(r"^SKIPPED \[\d+\] \S+: (.*)", output, re.MULTILINE))
    if line is None or reasons - SKIPPED_ON_DEVICES:
        raise RuntimeError(f"tests did not run: {', '.join(reasons) or 'none passed'}")
    return line
