"""Signals at random moments of an export, of a generation and of a run."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.command import READY_COMMAND
from support.fakes.engine import assert_settled
from support.interrupts import Interrupts
from trigraph.exporter import ExportOptions, export, read_manifest
from trigraph.runtime import Options, Sampling, load

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits, signals and mounts are those of POSIX")

GREEDY = Sampling(temperature=0.0)
# Ctrl-C in the first import of a name that begins so, and where Python would only print KeyboardInterrupt and go on.
INTERRUPTED_IMPORT = """
import signal, sys, weakref
from trigraph.runtime.cli.app import main

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(begin):
            sys.meta_path.remove(self)
            weakref.ref(Finder(), lambda _: signal.raise_signal(signal.SIGINT))

begin = sys.argv.pop(1)
sys.meta_path.insert(0, Finder())
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_at_random_moments_of_an_export(number: int, rich_source: Path, tmp_path: Path) -> None:
    """No half package, no folder left over; either the old package or the whole new one."""
    rng = random.Random(int(number))
    old = export(rich_source, tmp_path / "package", ExportOptions(max_context=100))
    statuses = set()
    for _ in range(4):
        arguments = ["export", rich_source, "-o", tmp_path / "package", "--force", "--copy-weights"]
        started = [*READY_COMMAND, *map(str, arguments)]
        with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(rng.random() * 0.5)
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
        statuses.add(process.returncode)
        assert process.returncode in (128 + number, 0, -number), errors
        assert "Traceback" not in errors
        assert {path.name for path in tmp_path.iterdir()} == {"package"}
        found = read_manifest(tmp_path / "package")
        assert found == old or (found.max_context, len(found.graphs)) == (4096, 3)
        if found != old:
            export(rich_source, tmp_path / "package", ExportOptions(max_context=100))
    assert statuses - {0}


@pytest.mark.slow
def test_interrupts_at_random_moments_of_an_export(rich_source: Path, tmp_path: Path) -> None:
    """The same at many moments, within one process."""
    rng, interrupted = random.Random(2), 0
    export(rich_source, tmp_path / "package", ExportOptions(weights="copy"))
    times = []
    for _ in range(3):
        started = time.perf_counter()
        export(rich_source, tmp_path / "package", ExportOptions(weights="copy"))
        times.append(time.perf_counter() - started)
    whole = min(times)  # a slow one would put the interrupts behind the end of the others
    for round_number in range(40):
        before = read_manifest(tmp_path / "package")
        try:
            with Interrupts(max(1e-4, rng.random() * whole)):
                export(rich_source, tmp_path / "package", ExportOptions(weights="copy", max_context=100 + round_number))
        except KeyboardInterrupt:
            interrupted += 1
        assert {path.name for path in tmp_path.iterdir()} == {"package"}
        found = read_manifest(tmp_path / "package")
        assert found == before or found.max_context == 100 + round_number
    assert interrupted > 10


@pytest.mark.slow
def test_interrupts_at_random_moments_of_a_generation(copied_package: Path) -> None:
    """Nothing leaks, and the next text is what it would have been."""
    engine = load(copied_package, threads=1, context=512)
    options = Options(GREEDY, max_tokens=60, ignore_eos=True, draft_tokens=3)
    expected = engine.generate("In the beginning", options)
    expected.run()  # the first one allocates
    times = []
    for _ in range(3):
        started = time.perf_counter()
        engine.generate("In the beginning", options).run()
        times.append(time.perf_counter() - started)
    whole = min(times)
    rng, interrupted = random.Random(1), 0
    for _ in range(60):
        generation = engine.generate("In the beginning", options)
        try:
            with Interrupts(max(1e-4, rng.random() * whole)):
                generation.run()
        except KeyboardInterrupt:
            interrupted += 1
        assert_settled(engine)
        assert generation.ids == expected.ids[: len(generation.ids)]
    assert interrupted > 20
    again = engine.generate("In the beginning", options)
    again.run()
    assert again.ids == expected.ids


@pytest.mark.parametrize("seed", range(3))
def test_ctrl_c_at_random_moments_of_a_run(seed: int, copied_package: Path) -> None:
    arguments = ["run", copied_package, "-p", "And", "--ignore-eos", "-t", "1", "-n", "-1"]
    started = [*READY_COMMAND, *map(str, arguments)]
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.Random(seed).random() * 0.4)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    # Python gives signals back to the system when it ends.
    assert process.returncode in (130, 0, *([-signal.SIGINT] if "| end: " in errors else [])), errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("begin", ["", "trigraph.runtime.cli.run"])
def test_ctrl_c_while_the_command_imports_modules(begin: str, copied_package: Path) -> None:
    """The command line's own at the first, or those of `run`."""
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, begin, "run", str(copied_package), "-p", "And", "-n", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
