"""Requests that schemathesis makes up of the server's own description, valid and not: none fails, none hangs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.fakes.engine import assert_settled
from support.servers.scripted import PLAIN_TEMPLATE, replying, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("schemathesis") is None, reason="schemathesis is not installed"),
]

OPTIONS = ["--mode=all", "--checks=not_a_server_error", "--request-timeout=200", "--seed=13", "--no-color"]


@pytest.mark.parametrize(
    ("phase", "most", "least", "options"),
    [
        ("fuzzing", 12, 80, []),
        # What counts a request's tokens reads the requests of another route, and begins as that does.
        ("coverage", 1, 1500, ["--exclude-path-regex=/input_tokens$"]),
    ],
)
def test_no_request_fails_the_server(phase: str, most: int, least: int, options: list[str], tmp_path: Path) -> None:
    engine = replying("Yes.", template=PLAIN_TEMPLATE, context=256)
    with serving(engine) as address:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json", *OPTIONS]
        command += [f"--phases={phase}", f"--max-examples={most}", *options]
        # It keeps files in the folder that it runs in.
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(r"([\d,]+) generated, ([\d,]+) passed", done.stdout)
    assert counted is not None and counted[1] == counted[2] and int(counted[1].replace(",", "")) >= least
    assert_settled(engine)
