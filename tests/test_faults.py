"""Faults of the machine and of others: full disks, interrupts, files that change, too little memory; long runs.

`python tests/test_faults.py` makes the long run of 20,000 tokens.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from support.interrupts import Interrupts
from support.random_gguf import write_random
from trigraph.exporter import ExportOptions, export, is_package, read_manifest
from trigraph.models.errors import TrigraphError
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Engine, Options, Sampling, load

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits, signals and mounts are those of POSIX")

COMMAND = [sys.executable, "-c", "from trigraph.runtime.cli.app import main; main()"]
GREEDY = Sampling(temperature=0.0)


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """`trigraph` in a process of its own."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False, **options
    )


def assert_one_line_error(done: subprocess.CompletedProcess[str], *texts: str) -> None:
    assert done.returncode == 2, done
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    for text in texts:
        assert text in lines[0]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose export makes each kind of file: graphs, a side file, a tokenizer, a template, copied weights."""
    types = {"*ffn_up*": "IQ3_S"}
    return write_random(tmp_path_factory.mktemp("source") / "model.gguf", "qwen35", preset="blocks", types=types)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, operator_library: Path) -> Path:
    out = tmp_path_factory.mktemp("tiny") / "package"
    export(TINY_GGUF, out, ExportOptions(weights="copy"))
    return out


# Full disks


def test_files_that_may_not_grow(source: Path, tmp_path: Path) -> None:
    """A limit of size fails the first write past it, in one file after the other: the largest file needs the most."""
    whole = tmp_path / "whole"
    export(source, whole, ExportOptions(weights="copy"))
    sizes = sorted({path.stat().st_size for path in whole.iterdir()})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (0, *(size - 1 for size in sizes)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            with pytest.raises(TrigraphError, match=r"cannot be written: File too large"):
                export(source, tmp_path / "new/package", ExportOptions(weights="copy"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert {path.name for path in tmp_path.iterdir()} == {"whole"}


_FILL = """
import os, subprocess, sys
from pathlib import Path
from trigraph.exporter import ExportOptions, export
from trigraph.models.errors import TrigraphError
source, disk, step = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
kilobytes, failures = 4, 0
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", disk], check=True)
while True:
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", disk], check=True)
    try:
        export(source, disk / "package", ExportOptions(weights="copy"))
        break
    except TrigraphError as error:
        assert "cannot be written: No space left on device" in str(error), error
        assert not os.listdir(disk), os.listdir(disk)
        failures += 1
        kilobytes += step
print(failures)
"""


def test_a_disk_that_fills_up(source: Path, tmp_path: Path) -> None:
    """On disks from a page to just enough, so that each file is the one that does not fit."""
    (tmp_path / "disk").mkdir()
    inside = ["unshare", "--mount", "--map-root-user"] if os.getuid() else ["unshare", "--mount"]
    mount = ["mount", "-t", "tmpfs", "none", str(tmp_path / "disk")]
    if not shutil.which("unshare") or subprocess.run([*inside, *mount], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    total = source.stat().st_size // 1024
    arguments = [str(source), str(tmp_path / "disk"), str(max(4, total // 30))]
    done = subprocess.run(
        [*inside, sys.executable, "-c", _FILL, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 20


def test_output_that_cannot_be_written(package: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    for arguments in (
        ["run", package, "-p", "And", "-n", 4],
        ["inspect", package],
        ["run", package, "-p", "a", "-n", 4, "--json"],
    ):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*COMMAND, *map(str, arguments)], stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert_one_line_error(done, "No space left on device")


# Interrupts

_READY = "from trigraph.runtime.cli.app import main; print('ready', flush=True); main()"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_at_random_moments_of_an_export(number: int, source: Path, tmp_path: Path) -> None:
    """No half package, no folder left over; either the old package or the whole new one."""
    rng = random.Random(int(number))
    old = export(source, tmp_path / "package", ExportOptions(max_context=100))
    statuses = set()
    for _ in range(4):
        arguments = ["export", source, "-o", tmp_path / "package", "--force", "--copy-weights"]
        started = [sys.executable, "-c", _READY, *map(str, arguments)]
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
            export(source, tmp_path / "package", ExportOptions(max_context=100))
    assert statuses - {0}


def test_interrupts_at_random_moments_of_an_export(source: Path, tmp_path: Path) -> None:
    """The same at many moments, within one process."""
    rng, interrupted = random.Random(2), 0
    export(source, tmp_path / "package", ExportOptions(weights="copy"))
    times = []
    for _ in range(3):
        started = time.perf_counter()
        export(source, tmp_path / "package", ExportOptions(weights="copy"))
        times.append(time.perf_counter() - started)
    whole = min(times)  # a slow one would put the interrupts behind the end of the others
    for round_number in range(40):
        before = read_manifest(tmp_path / "package")
        try:
            with Interrupts(max(1e-4, rng.random() * whole)):
                export(source, tmp_path / "package", ExportOptions(weights="copy", max_context=100 + round_number))
        except KeyboardInterrupt:
            interrupted += 1
        assert {path.name for path in tmp_path.iterdir()} == {"package"}
        found = read_manifest(tmp_path / "package")
        assert found == before or found.max_context == 100 + round_number
    assert interrupted > 10


def test_interrupts_at_random_moments_of_a_generation(package: Path) -> None:
    """Nothing leaks, and the next text is what it would have been."""
    engine = load(package, threads=1, context=512)
    options = Options(GREEDY, max_tokens=60, ignore_eos=True, draft_tokens=3)
    expected = engine.generate("In the beginning", options)
    expected.run()  # the first one allocates
    started = time.perf_counter()
    engine.generate("In the beginning", options).run()
    whole = time.perf_counter() - started
    rng, interrupted, state = random.Random(1), 0, engine.steps.state
    for _ in range(60):
        generation = engine.generate("In the beginning", options)
        try:
            with Interrupts(max(1e-4, rng.random() * whole)):
                generation.run()
        except KeyboardInterrupt:
            interrupted += 1
        assert (state.slots.free, state.pages.free) == (state.slots.size, state.pages.size)
        assert generation.ids == expected.ids[: len(generation.ids)]
    assert interrupted > 20
    again = engine.generate("In the beginning", options)
    again.run()
    assert again.ids == expected.ids


@pytest.mark.parametrize("seed", range(3))
def test_ctrl_c_at_random_moments_of_a_run(seed: int, package: Path) -> None:
    arguments = ["run", package, "-p", "And", "--ignore-eos", "-t", "1", "-n", "-1"]
    started = [sys.executable, "-c", _READY, *map(str, arguments)]
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.Random(seed).random() * 0.6)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, 0), errors
    assert "Traceback" not in errors


# Files that change


def test_weights_that_are_replaced_live_on(package: Path, tmp_path: Path) -> None:
    """Deleting or renaming over the file leaves a loaded model as it is; the next load refuses the new file."""
    copied = tmp_path / "package"
    shutil.copytree(package, copied)
    engine = load(copied, threads=1)
    options = Options(GREEDY, max_tokens=12)
    before = engine.generate("In the beginning", options).run()
    (weights,) = copied.glob("*.gguf")
    (tmp_path / "new").write_bytes(bytes(weights.stat().st_size))
    (tmp_path / "new").rename(weights)
    assert engine.generate("In the beginning", options).run() == before
    weights.unlink()
    assert engine.generate("In the beginning", options).run() == before
    with pytest.raises(TrigraphError, match="weights are gone"):
        load(copied, threads=1)


@pytest.mark.parametrize("change", ["write", "append"])
def test_weights_that_are_written_to_are_noticed(change: str, package: Path, tmp_path: Path) -> None:
    copied = tmp_path / "package"
    shutil.copytree(package, copied)
    engine = load(copied, threads=1)
    engine.generate("And", Options(GREEDY, max_tokens=2)).run()
    (weights,) = copied.glob("*.gguf")
    time.sleep(0.01)
    with open(weights, "r+b") as file:
        file.seek(0, os.SEEK_END if change == "append" else os.SEEK_SET)
        file.write(b"GGUF")
    with pytest.raises(TrigraphError, match="were written to while in use; load the model again"):
        engine.generate("And", Options(GREEDY, max_tokens=2))


def test_weights_that_are_cut_short_end_the_program_with_a_sentence(package: Path, tmp_path: Path) -> None:
    copied = tmp_path / "package"
    shutil.copytree(package, copied)
    (weights,) = copied.glob("*.gguf")
    arguments = ["run", copied, "-p", "And", "--ignore-eos", "-t", "1", "--temp", "1.5"]
    with subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        os.truncate(weights, 4096)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (2, 0), errors  # 0: the whole text was there before
    if process.returncode:
        assert errors.startswith(b"error: the weights were cut short while in use")


def test_a_source_that_is_cut_short_while_it_is_converted(source: Path, tmp_path: Path) -> None:
    growing = tmp_path / "model.gguf"
    shutil.copy(source, growing)

    def cut(stage: str, done: int, total: int) -> None:
        if stage == "convert":
            os.truncate(growing, growing.stat().st_size // 2)

    with patch("trigraph.exporter.weights.CHUNK_ELEMENTS", 4096), pytest.raises(TrigraphError, match="became shorter"):
        export(growing, tmp_path / "package", ExportOptions(), cut)
    assert {path.name for path in tmp_path.iterdir()} == {"model.gguf"}


# Memory


def test_too_little_memory_for_the_state(package: Path) -> None:
    """One sentence with what is needed and what is free, from the command too."""
    limit = 1 << 30

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    program = (
        "import sys; from trigraph.models.errors import TrigraphError; from trigraph.runtime import load\n"
        "try: load(sys.argv[1], threads=1, sequences=3000)\n"
        "except TrigraphError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(package)], capture_output=True, text=True, check=True, preexec_fn=limited
    )
    assert "the state of 3000 sequences of 2048 tokens needs " in done.stdout
    needed, free = (float(part.split(" MB")[0].split()[-1].replace(",", "")) for part in done.stdout.split(", and "))
    assert needed > free > 0
    assert needed * 1e6 > limit


@pytest.mark.parametrize("megabytes", [260, 280, 300, 320, 340])
def test_too_little_memory_for_the_model(megabytes: int, package: Path) -> None:
    """With less and less memory: a text, a sentence, or Python itself does not start."""
    size = megabytes << 20
    done = command(
        "run", package, "-p", "And", "-n", 4, "-t", 1,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size)),
    )  # fmt: skip
    if done.returncode == 2:
        assert_one_line_error(done)
    elif done.returncode:
        # Before the model is looked at: an import that fails, or a library that gives up.
        assert "import" in done.stderr or "memory allocation" in done.stderr, done.stderr


def test_weights_that_exceed_the_address_space(tmp_path: Path, operator_library: Path) -> None:
    """Files too large to be mapped are a want of memory too, said before they are."""
    large, size = tmp_path / "large.gguf", 3 << 30
    shutil.copy(TINY_GGUF, large)
    os.truncate(large, size)  # a hole
    export(large, tmp_path / "package", ExportOptions(weights="reference"))
    done = command(
        "run", tmp_path / "package", "-p", "And", "-n", 4, "-t", 1,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (size // 2, size // 2)),
    )  # fmt: skip
    assert_one_line_error(done, "the model needs 3,", " MB are free")


# Long runs


def long_run(folder: Path, tokens: int, context: int = 2048) -> Iterator[tuple[int, int, int]]:
    """Generates texts to the end of the context, with speculation, until there are so many tokens in all.

    Each is compared with plain decoding. Yields tokens so far, resident bytes, and drafts accepted.
    """
    engine = load(folder, threads=1, context=context)
    done = accepted = seed = 0
    while done < tokens:
        seed += 1
        sampling = Sampling(temperature=0.8, top_k=20, top_p=0.95, seed=seed)
        prompt = f"Chapter {seed}. And it came to pass"
        speculative = engine.generate(prompt, Options(sampling, ignore_eos=True, draft_tokens=1 + seed % 7))
        speculative.run()
        plain = engine.generate(prompt, Options(sampling, ignore_eos=True, speculate=False))
        plain.run()
        assert speculative.ids == plain.ids, f"text {seed} differs"
        assert speculative.stats.finish_reason == "context"
        state = engine.steps.state
        assert (state.slots.free, state.pages.free) == (state.slots.size, state.pages.size)
        done += len(speculative.ids)
        accepted += speculative.stats.accepted
        yield done, resident(engine), accepted


def resident(engine: Engine) -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_memory_is_flat_and_the_stream_is_that_of_plain_decoding(package: Path) -> None:
    texts = list(long_run(package, 6 * 500, context=512))
    assert len(texts) >= 6
    assert texts[-1][2] > 100, "hardly a draft was accepted"
    growth = texts[-1][1] - texts[1][1]
    assert growth < 4 << 20, texts


def main() -> None:
    """The long run, with its figures."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "package"
        export(TINY_GGUF, out)
        assert is_package(out)
        started = time.perf_counter()
        for done, memory, accepted in long_run(out, 20000):
            seconds = round(time.perf_counter() - started)
            print(json.dumps({"tokens": done, "MB": round(memory / 1e6, 2), "accepted": accepted, "seconds": seconds}))


if __name__ == "__main__":
    main()
