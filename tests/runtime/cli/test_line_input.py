"""What is typed at the prompt of a chat, on a terminal of its own."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("readline", reason="Python has no readline here")
pty = pytest.importorskip("pty", reason="there are no pseudo-terminals here")

PROGRAM = """\
import json, os, signal
os.close(os.open(os.ttyname(0), os.O_RDWR))  # which makes it the controlling terminal
signal.signal(signal.SIGINT, signal.default_int_handler)
from trigraph.runtime.cli.line_input import LineInput
with LineInput() as lines:
    while (text := lines.ask("> ")) is not None:
        print("got", json.dumps(text), flush=True)
"""
CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"
PASTED = "\x1b[200~one\ntwo\nthree\x1b[201~"


def _runs(process: int) -> bool:
    """Whether a process is about to do something, and waits for no keys; taken from Linux, or for granted."""
    time.sleep(0.05)
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] in "RD"


def typed(state: Path, *keys: str) -> tuple[list[str], str]:
    """The messages that come of keys, each typed at a prompt of its own, and all that the terminal shows."""
    master, slave = pty.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(state), "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
        start_new_session=True,
    )
    os.close(slave)
    shown = ""

    def read_until(prompts: int) -> None:
        nonlocal shown
        deadline = time.monotonic() + 60
        while shown.count("> ") + shown.count("... ") < prompts and time.monotonic() < deadline:
            if select.select([master], [], [], 0.1)[0]:
                try:
                    shown += os.read(master, 4096).decode()
                except OSError:  # the program has ended
                    return

    read_until(1)
    for key in keys:
        before = shown.count("> ") + shown.count("... ")
        while _runs(process.pid):  # Python sees a signal between a prompt and its wait for keys only with the next key
            time.sleep(0.01)
        os.write(master, key.encode())
        read_until(before + 1)
    os.write(master, CTRL_D.encode())
    process.wait(timeout=60)
    os.close(master)
    lines = [line.strip() for line in shown.splitlines()]
    return [json.loads(line.removeprefix("got ")) for line in lines if line.startswith("got ")], shown


def test_pasted_lines_are_one_message(tmp_path: Path) -> None:
    assert typed(tmp_path, PASTED + "\r")[0] == ["one\ntwo\nthree"]


def test_a_backslash_goes_on_in_the_next_line(tmp_path: Path) -> None:
    assert typed(tmp_path, "one \\\r", "two\\\r", "three\r", "four\r")[0] == ["one \ntwo\nthree", "four"]


def test_ctrl_c_drops_a_line_and_nothing_else(tmp_path: Path) -> None:
    messages, shown = typed(tmp_path, "one\r", "two" + CTRL_C, "thr\\\r", CTRL_C, "four\r")
    assert messages == ["one", "four"]
    assert "/exit or Ctrl-D quits" in shown


def test_history_is_kept_across_chats(tmp_path: Path) -> None:
    assert typed(tmp_path, "what was said\r")[0] == ["what was said"]
    history = tmp_path / "trigraph" / "history"
    assert history.stat().st_mode & 0o077 == 0, "others can read it"
    assert typed(tmp_path, UP + "\r")[0] == ["what was said"]
    history.write_bytes(b"\xff\xfe\n")
    assert typed(tmp_path, "a\r")[0] == ["a"], "a damaged history does no harm"
    assert typed(Path("/dev/null"), "a\r")[0] == ["a"], "nor does one that cannot be written"
