"""A terminal that closes ends every command as Ctrl-C does: nothing half done is left."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="terminals and signals are those of POSIX")

# As the installed command does. After -m, Python gives -SIGINT for 130 where Ctrl-C came within exec() of a string.
COMMAND = [sys.executable, "-c", "from trigraph.runtime.__main__ import main; main()"]
SECONDS = 120  # that stop a hang
Started = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def started() -> Iterator[Started]:
    """Starts a command with the signals that a shell gives it."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*arguments: object, ignored: tuple[int, ...] = (), **options: object) -> subprocess.Popen[bytes]:
        def handlers() -> None:
            for kind in (signal.SIGINT, signal.SIGHUP):
                signal.signal(kind, signal.SIG_IGN if kind in ignored else signal.SIG_DFL)

        command = [*COMMAND, *map(str, arguments)]
        processes.append(subprocess.Popen(command, preexec_fn=handlers, **options))  # type: ignore[call-overload]  # noqa: PLW1509
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def partial(folder: Path) -> list[Path]:
    """What is being written, or was left."""
    return [*folder.glob(".*.partial-*")]


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("ignored", [(), (signal.SIGINT,)], ids=["", "in the background"])
def test_nothing_is_left_of_a_file(started: Started, ignored: tuple[int, ...], tmp_path: Path) -> None:
    process = started("synth", "qwen3.6-35b-a3b", tmp_path / "model.gguf", ignored=ignored)
    until(lambda: partial(tmp_path))
    process.send_signal(signal.SIGHUP)
    assert process.wait(SECONDS) in (128 + signal.SIGINT, 128 + signal.SIGHUP)
    assert not partial(tmp_path)


@pytest.mark.slow
def test_a_server_ends_but_not_under_nohup(started: Started, tiny_package: Path) -> None:
    for ignored in ((), (signal.SIGHUP,)):
        process = started("serve", tiny_package, "--port", 0, "-t", 1, stderr=subprocess.PIPE, ignored=ignored)
        stderr = process.stderr
        assert stderr is not None
        while (address := re.search(rb"http://\S+(?=; Ctrl-C ends the server)", line := stderr.readline())) is None:
            assert line
        with urlopen(f"{address[0].decode()}/health", timeout=SECONDS):  # before, a signal ends it as any other command
            process.send_signal(signal.SIGHUP)
        if not ignored:
            assert process.wait(SECONDS) == 0
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("-p", "And", "--ignore-eos", "-n", 100_000)], ids=["a chat", "a reply"])
def test_a_terminal_that_closes(arguments: tuple[object, ...], tiny_package: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    child, terminal = pty.fork()
    if not child:
        for kind in (signal.SIGINT, signal.SIGHUP):
            signal.signal(kind, signal.SIG_DFL)
        os.execve(COMMAND[0], [*COMMAND, "run", str(tiny_package), "-t", "1", *map(str, arguments)], environment)
    seen = b""
    while not re.search(rb"(> |And.*\w{3})$", seen, re.DOTALL):
        with suppress(OSError):
            seen += os.read(terminal, 1000)
    os.close(terminal)
    ended = (0, 0)
    deadline = time.monotonic() + SECONDS
    while ended == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
        ended = os.waitpid(child, os.WNOHANG)
    assert ended[0] == child
    assert os.waitstatus_to_exitcode(ended[1]) in (128 + signal.SIGINT, 2, 0)  # 2: nothing can be written any more
