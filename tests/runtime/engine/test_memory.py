"""Too little memory, and memory over a long run.

`python tests/runtime/engine/test_memory.py` makes the long run of 20,000 tokens.
"""

from __future__ import annotations

import gc
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.command import assert_one_line_error, run_command
from support.fakes.engine import assert_settled
from trigraph.exporter import ExportOptions, export, is_package
from trigraph.models.errors import TrigraphError
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.device.memory import left_of_container
from trigraph.runtime.state.state import State

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits, signals and mounts are those of POSIX")

GREEDY = Sampling(temperature=0.0)


def test_too_little_memory_for_the_state(copied_package: Path) -> None:
    """One sentence with what is needed and what is free, from the command too."""
    limit = 1 << 30

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    program = (
        "import sys; from trigraph.models.errors import TrigraphError; from trigraph.runtime import load\n"
        "try: load(sys.argv[1], threads=1, kv_memory=2 << 30)\n"
        "except TrigraphError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(copied_package)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=limited,
    )
    assert " MB of slots and 2,147 MB of pages, needs " in done.stdout
    found = re.search(r"needs ([\d,]+) MB, and ([\d,]+) MB are free", done.stdout)
    assert found is not None
    needed, free = (float(text.replace(",", "")) for text in found.groups())
    assert needed > free > 0
    assert needed * 1e6 > limit


@pytest.mark.parametrize("megabytes", [260, 280, 300, 320, 340])
def test_too_little_memory_for_the_model(megabytes: int, copied_package: Path) -> None:
    """With less and less memory: a text, a sentence, or Python itself does not start."""
    size = megabytes << 20
    done = run_command(
        "run", copied_package, "-p", "And", "-n", 4, "-t", 1,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size)),
    )  # fmt: skip
    if done.status == 2:
        assert_one_line_error(done)
    elif done.status:
        # Before the model is looked at: an import that fails, or a library that gives up.
        assert "import" in done.err or "memory allocation" in done.err, done.err


def test_weights_that_exceed_the_address_space(tmp_path: Path, operator_library: Path) -> None:
    """Files too large to be mapped are a want of memory too, said before they are."""
    large, size = tmp_path / "large.gguf", 3 << 30
    shutil.copy(TINY_GGUF, large)
    os.truncate(large, size)  # a hole
    export(large, tmp_path / "package", ExportOptions(weights="reference"))
    done = run_command(
        "run", tmp_path / "package", "-p", "And", "-n", 4, "-t", 1,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (size // 2, size // 2)),
    )  # fmt: skip
    assert_one_line_error(done, "the model needs 3,", " MB are free")


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_a_large_budget_takes_no_memory_until_it_is_used(copied_package: Path) -> None:
    """In a process of its own: memory that a process has freed before is taken again, and set to zero."""
    code = "import sys; from pathlib import Path; import test_memory; test_memory.check_large_budget(Path(sys.argv[1]))"
    path = os.pathsep.join([*map(str, Path(__file__).parents[:3:2]), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-c", code, copied_package], env={**os.environ, "PYTHONPATH": path}, check=True)


def check_large_budget(folder: Path) -> None:
    """Loads a package with budgets of a gigabyte each."""
    small = load(folder, threads=1, context=512, kv_memory=1 << 20, checkpoint_memory=1)
    before = resident(small)
    large = load(folder, threads=1, context=512, kv_memory=1 << 30, checkpoint_memory=1 << 30)
    assert large.steps.state.nbytes() > 2 << 30
    assert resident(large) - before < 100 << 20
    for engine in (small, large):
        engine.generate("And it came to pass", Options(GREEDY, max_tokens=50, ignore_eos=True)).run()
    assert resident(large) - before < 100 << 20


GROUP = {"memory.max": "5000", "memory.current": "4000", "memory.stat": "anon 1\ninactive_file 300\n"}
OLD_GROUP = {
    "memory.limit_in_bytes": "900",
    "memory.usage_in_bytes": "600",
    "memory.stat": "inactive_file 1\ntotal_inactive_file 30\n",
}


@pytest.mark.parametrize(
    ("own", "groups", "left"),
    [
        ("0::/", {"sys/fs/cgroup": GROUP}, 1300),
        ("0::/a/b", {"sys/fs/cgroup/a": GROUP, "sys/fs/cgroup/a/b": {**GROUP, "memory.max": "max"}}, 1300),
        ("0::/a/b", {"sys/fs/cgroup": GROUP, "sys/fs/cgroup/a": {**GROUP, "memory.max": "1"}}, 0),
        ("0::/\n4:memory:/a\n5:cpu:/", {"sys/fs/cgroup/memory/a": OLD_GROUP}, 330),
        ("4:hugetlb,memory:/elsewhere", {"sys/fs/cgroup/memory": OLD_GROUP}, 330),
        ("0::/../up", {"sys/fs/cgroup": {**GROUP, "memory.max": "max"}}, None),
        (None, {}, None),
    ],
)
def test_limits_of_containers(
    own: str | None, groups: dict[str, dict[str, str]], left: int | None, tmp_path: Path
) -> None:
    for folder, files in groups.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (tmp_path / folder / name).write_text(content)
    if own is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(own)
    assert left_of_container(tmp_path) == left


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
        assert_settled(engine)
        done += len(speculative.ids)
        accepted += speculative.stats.accepted
        yield done, resident(engine), accepted


def resident(engine: Engine) -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_memory_is_flat_and_the_stream_is_that_of_plain_decoding(copied_package: Path) -> None:
    texts = list(long_run(copied_package, 12 * 500, context=512))
    assert len(texts) >= 12
    assert texts[-1][2] > 100, "hardly a draft was accepted"
    growth = texts[-1][1] - texts[6][1]  # the first seven draft 1 to 7 tokens, and a new shape takes memory once
    assert growth < 4 << 20, texts


def test_an_engine_that_is_dropped_gives_its_memory_back_at_once(copied_package: Path) -> None:
    """Not when the collector comes, which counts objects and no bytes."""
    gc.collect()
    gc.disable()
    try:
        engine = load(copied_package, threads=1, context=512)
        engine.generate("And it came to pass", Options(max_tokens=8, ignore_eos=True)).run()
        parts = engine.model, engine.steps, engine.steps.state, engine.cache, engine.tokenizer
        left, thread = [weakref.ref(part) for part in parts], engine._driver._thread
        del engine, parts
        assert thread is not None
        thread.join(60)  # which holds the engine until the round is over that has woken this one
        assert [type(part()).__name__ for part in left if part() is not None] == []
    finally:
        gc.enable()


def test_a_load_that_fails_gives_its_memory_back_at_once(copied_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[weakref.ref[State]] = []

    def unreadable(*arguments: object) -> None:
        raise TrigraphError("the tokenizer cannot be read")

    class Noted(State):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            states.append(weakref.ref(self))

    monkeypatch.setattr("trigraph.runtime.engine.loading.read_texts", unreadable)
    monkeypatch.setattr("trigraph.runtime.engine.loading.State", Noted)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(TrigraphError, match="tokenizer cannot be read"):
            load(copied_package, threads=1, context=512)
        assert [state() for state in states] == [None]
    finally:
        gc.enable()


_THREADS = """
import sys, threading
from trigraph.runtime import Options, Sampling, load

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def compute(number):
    engine.generate([number] * 480, Options(Sampling(temperature=0.0), max_tokens=2, ignore_eos=True)).run()
    computed.release()
    ended.wait()

engine = load(sys.argv[1], threads=1, context=512, sequences=1, checkpoint_memory=1)
computed, ended = threading.Semaphore(0), threading.Event()
sizes = []
for number in range(16):
    threading.Thread(target=compute, args=(number,)).start()
    computed.acquire()
    sizes.append(resident())
ended.set()
print(sizes[-1] - sizes[3])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_operators_keep_no_memory_for_each_thread_that_ran_a_step(copied_package: Path) -> None:
    """Threads of a server live long, and any of them may once compute a prompt."""
    command = [sys.executable, "-c", _THREADS, str(copied_package)]
    one_heap = {**os.environ, "MALLOC_ARENA_MAX": "1"}  # what glibc keeps for a thread is another matter
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=one_heap)
    assert int(done.stdout) < 12 * 500_000


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
