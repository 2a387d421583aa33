"""Subjects of commits: at most 72 characters, so that a log of one line each shows them whole."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = 72


def git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def long_subjects(log: str) -> list[str]:
    return [line for line in log.splitlines() if len(line.partition(" ")[2]) > LONGEST]


def test_subjects_since_main() -> None:
    logs = (git("log", "--no-merges", "--format=%h %s", f"{main}..HEAD") for main in ("origin/main", "main"))
    log = next((log for log in logs if log is not None), None)
    if log is None:
        pytest.skip("no branch main here to compare with")
    assert not long_subjects(log), "\n".join(long_subjects(log))


def test_what_is_long() -> None:
    log = "\n".join(f"abc123 {'x' * length}" for length in (LONGEST, LONGEST + 1))
    assert long_subjects(log) == [f"abc123 {'x' * (LONGEST + 1)}"]
