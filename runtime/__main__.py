"""The command `trigraph`, and `python -m trigraph.runtime`. Ctrl-C ends it with status 130 from the start.

A terminal that closes does what Ctrl-C does.
"""

from __future__ import annotations

import gc
import os
import signal
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Imports the command line, which takes up to a second, and runs it."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        # KeyboardInterrupt would show a traceback of whatever is being imported, or pass for a failed import.
        signal.signal(signal.SIGINT, _leave)
    gc.disable()  # what is imported stays: looking through it again and again takes a tenth of the time
    from trigraph.models.signals import interrupt_on_hangup
    from trigraph.runtime.cli.app import main as run

    gc.freeze()
    gc.enable()
    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupt_on_hangup()
    run()


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)  # nothing has been written yet


if __name__ == "__main__":
    main()
