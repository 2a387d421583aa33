"""A process under limits: a request on its stdin, a response on its stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

_START = Path(__file__).with_name("start.py")
_MAX_RESPONSE = 64 << 20  # bytes


class LimitedProcess:
    """A process that runs the `main` of a program, which answers each request with a line of JSON.

    A response whose JSON has `bytes` is followed by as many.
    """

    def __init__(self, program: Path, memory: int) -> None:
        """Starts the program; `memory` is its limit in bytes. Raises OSError when no process can be started."""
        process = subprocess.Popen(
            # -P: the folder of the program holds modules that it must not import.
            [sys.executable, "-P", str(_START), str(program), str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the parent
        )
        self._owner = os.getpid()
        weakref.finalize(self, _end, process, self._owner)
        self.process = process
        self._over = False

    @property
    def ended(self) -> bool:
        """Whether it was late, crashed, or is that of another process that forked; there has to be a new one."""
        return self._over or self._owner != os.getpid() or self.process.poll() is not None

    def ask(self, request: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """The response to a request, and the bytes after it; where there is none its `error` says why.

        `late` is then whether it ran for too long. Ends the process when it is late, crashes, or the request is
        interrupted.
        """
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        started = time.monotonic()
        late = threading.Timer(seconds, process.kill)
        late.start()
        try:
            process.stdin.write(request)
            process.stdin.flush()
            response: dict[str, Any] = json.loads(process.stdout.readline(_MAX_RESPONSE))
            content = process.stdout.read(count) if (count := response.get("bytes", 0)) else b""
            if len(content) < count:
                raise EOFError
        except (OSError, ValueError, EOFError):
            self.end()
            overdue = time.monotonic() - started >= seconds
            reason = f"it ran for more than {seconds:g} s" if overdue else "its process crashed"
            return {"error": reason, "late": overdue}, b""
        except BaseException:
            self.end()
            raise
        finally:
            late.cancel()
        return response, content

    def end(self) -> None:
        """Ends the process."""
        self._over = True
        _end(self.process, self._owner)


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if owner != os.getpid():  # a fork, at its exit
        return
    process.kill()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # a request that nobody read
            if pipe is not None:
                pipe.close()
    process.wait()
