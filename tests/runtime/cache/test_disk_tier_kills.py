"""Programs that are killed while they write checkpoints."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from trigraph.runtime import load
from trigraph.runtime.cache.session_file import SessionFile


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*") if path.is_file())


def whole(folder: Path) -> list[Path]:
    """Those that are not being written."""
    return [path for path in files(folder) if not path.name.startswith(".")]


_WRITER = """
import sys, numpy as np
from pathlib import Path
from trigraph.runtime import load
from trigraph.runtime.cache import disk_tier
disk_tier._MIN_SECONDS = disk_tier._MIN_READS = 0
engine = load(sys.argv[1], threads=1, cache_dir=sys.argv[2], context=1000)
engine.model.prefill_speed.observe(1, 1000.0)
random = np.random.default_rng(int(sys.argv[3]))
print("ready", flush=True)
for _ in range(int(sys.argv[4])):
    prompt = random.integers(0, 50, int(random.integers(300, 900))).tolist()
    steps = engine.steps
    with steps.lock:
        sequence = engine.cache.find(prompt).sequence
        if rest := prompt[sequence.length:]:
            engine.cache.insert(sequence, steps.prefill([sequence], [rest]))
        steps.release(sequence)
    engine.disk.finish()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
def test_programs_that_are_killed_while_they_write(tiny_package: Path, tmp_path: Path) -> None:
    """Two at once: what there is in the end is whole, and nothing half written stays."""
    random = np.random.default_rng(1)
    for turn in range(2):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", _WRITER, str(tiny_package), str(tmp_path), str(seed), "1000"],
                stdout=subprocess.PIPE,
            )
            for seed in (turn, turn + 1)
        ]
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        until = time.monotonic() + 120
        while len(whole(tmp_path)) < 3 * (1 + turn) and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(float(random.uniform(0, 0.3)))
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
    before = whole(tmp_path)
    done = subprocess.run([sys.executable, "-c", _WRITER, str(tiny_package), str(tmp_path), "0", "4"], check=False)
    assert done.returncode == 0
    after = files(tmp_path)
    assert [path for path in after if path.name.startswith(".")] == []
    assert len(after) >= len(before) > 2
    engine = load(tiny_package, threads=1, context=1000)
    for path in after:
        engine.cache.load(SessionFile(path, engine.identity, engine.steps))
        engine.cache.clear()
