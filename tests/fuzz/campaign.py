"""Runs cases in a child process, so that a crash or a hang is a result too."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# A child hangs that says nothing while it takes so much processor time, or takes none for so long. Neither depends on
# what else the machine does.
HANG_SECONDS = 300.0
_TESTS = Path(__file__).parents[1]


@dataclass
class Report:
    """What became of the cases."""

    target: str
    seed: int
    outcomes: Counter[str] = field(default_factory=Counter)
    defects: dict[int, str] = field(default_factory=dict)
    """By number of the case."""
    seconds: float = 0.0
    slowest: float = 0.0
    """Processor seconds of the slowest case."""
    peak_bytes: int = 0
    """Resident memory that the cases added to the child."""

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.outcomes.most_common())
        lines = [
            f"{self.target}: {self.outcomes.total()} cases in {self.seconds:.0f} s, seed {self.seed}: {counts}; "
            f"slowest {self.slowest:.3f} s, at most {self.peak_bytes / 1e6:.0f} MB; {len(self.defects)} defects"
        ]
        groups: dict[str, list[int]] = {}
        for case, text in sorted(self.defects.items()):
            groups.setdefault(text.strip().rsplit("\n", 1)[-1][:80], []).append(case)
        for cases in groups.values():
            text = self.defects[cases[0]]
            lines.append(f"cases {cases[:10]} ({len(cases)}): {text[:300]} ... {text[-1200:]}")
        return "\n".join(lines)


def run_campaign(target: str, count: int, *, seed: int = 1, first: int = 0) -> Report:
    """Run cases first .. first + count - 1 of a target."""
    report = Report(target, seed)
    started = time.monotonic()
    number, end = first, first + count
    while number < end:
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_scratch()) as folder:
            number = _run_child(report, number, end, Path(folder))
    report.seconds = time.monotonic() - started
    return report


def _run_child(report: Report, number: int, end: int, folder: Path) -> int:
    """Run cases until the child ends; returns the number of the next case."""
    errors = folder / "stderr"
    command = [sys.executable, "-m", "fuzz.worker", report.target, str(report.seed), str(number), str(end), str(folder)]
    paths = [str(_TESTS), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "MALLOC_ARENA_MAX": "1",  # an arena reserves address space, which is limited
    }
    with (
        open(errors, "wb") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=environment) as child,
    ):
        for line in _lines(child):
            kind, rest = line.split(" ", 1)
            if kind == "done":
                name, seconds, peak = rest.split(" ")
                report.outcomes[name] += 1
                report.slowest = max(report.slowest, float(seconds))
                report.peak_bytes = max(report.peak_bytes, int(peak))
                number += 1
            elif kind == "defect":
                report.defects[number] = rest.replace("\\n", "\n")
        hung = child.poll() is None and number < end
        if hung:
            child.kill()
    if number < end:
        what = f"no result after {HANG_SECONDS:.0f} s" if hung else f"the process ended with status {child.returncode}"
        report.defects[number] = f"{what}\n{_last_words(errors.read_text(errors='replace'))}"
        report.outcomes["crash"] += 1
        number += 1
    return number


def _last_words(text: str) -> str:
    """The end of what a process said; from the line on, and again that line, that says what a sanitizer saw."""
    found = re.search(r".*(runtime error|ERROR: \w+Sanitizer|WARNING: ThreadSanitizer): .*", text)
    return f"{text[found.start() :][:2000]}\n{found[0]}" if found else text[-2000:]


def _lines(child: subprocess.Popen[bytes]) -> Iterator[str]:
    """Lines of the child's output, until it ends or hangs."""
    assert child.stdout is not None
    descriptor, rest = child.stdout.fileno(), b""
    while not _hangs(child.pid, descriptor):
        content = os.read(descriptor, 1 << 16)
        if not content:
            child.wait()
            return
        *lines, rest = (rest + content).split(b"\n")
        for line in lines:
            yield line.decode()


def _hangs(process: int, descriptor: int) -> bool:
    """Waits until there is something to read, or the process hangs."""
    began = last = _processor_seconds(process)
    moved = time.monotonic()
    while not select.select([descriptor], [], [], 1.0)[0]:
        used = _processor_seconds(process)
        if used > last:
            last, moved = used, time.monotonic()
        if max(used - began, time.monotonic() - moved) > HANG_SECONDS:
            return True
    return False


def _processor_seconds(process: int) -> float:
    """What a process has taken; where the system does not tell, the time of day."""
    stat = Path(f"/proc/{process}/stat")
    if not stat.exists():
        return time.monotonic()
    user, system = stat.read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _scratch() -> str | None:
    """A folder in memory where there is one: cases write small files, many of them."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None
