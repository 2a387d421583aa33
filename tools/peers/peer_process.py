"""Another engine in a process of its own, which answers each line of JSON with one."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from trigraph.models.errors import TrigraphError


class PeerProcess:
    """A script that runs until `close`. Its first line of input is its settings; what it prints to stderr is kept."""

    def __init__(self, name: str, script: Path, settings: dict[str, Any]) -> None:
        """`name` is the engine's, for errors. Raises TrigraphError when the script cannot use the settings."""
        self._name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (close ends it)
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.ask(settings)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer to a question. Raises TrigraphError when it is an error, or the process ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            print(json.dumps(question), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise TrigraphError(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise TrigraphError(f"{self._name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _last_words(self) -> str:
        """Why the process ended; it is gone afterwards."""
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        self.close()
        return lines[-1] if lines else f"its process ended with status {status}"
