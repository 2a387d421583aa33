"""The child of a campaign: runs cases under a limit of address space and reports on each."""

from __future__ import annotations

import os
import resource
import sys
import time
import traceback
from pathlib import Path

from fuzz.target import TARGETS, Limits, Target, make_target
from trigraph.models.errors import TrigraphError


def main(name: str, seed: int, first: int, end: int, folder: Path) -> None:
    """Run cases first .. end - 1 of a target."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no report
    limits, target = TARGETS[name], make_target(name, folder)
    _run(target, limits, seed, first)  # loads what is loaded once only
    _limit_address_space(limits.bytes)
    base = _peak()
    for case in range(first, end):
        started = time.process_time()
        outcome, defect = _run(target, limits, seed, case)
        seconds = time.process_time() - started
        if seconds > limits.cpu_seconds:
            defect = f"took {seconds:.2f} s ({outcome})"
        if defect:
            print("defect", defect.replace("\n", "\\n"), file=channel)
        print("done", "defect" if defect else outcome, f"{seconds:.4f}", _peak() - base, file=channel, flush=True)


def _run(target: Target, limits: Limits, seed: int, case: int) -> tuple[str, str]:
    """What became of a case, and what is wrong with that."""
    try:
        return target.run(seed, case), ""
    except TrigraphError as error:
        text = str(error)
        if "\n" in text or len(text) > limits.error_length:
            return "refused", f"the error is not one short line: {text[:2000]!r}"
        return "refused", ""
    except BaseException:  # panics of the tokenizers package are no Exception
        return "defect", traceback.format_exc()


def _limit_address_space(allowance: int) -> None:
    """Let the process grow by `allowance` bytes and no further; only Linux tells what it has."""
    status = Path("/proc/self/statm")
    if status.exists():
        pages = int(status.read_text().split()[0])
        limit = pages * resource.getpagesize() + allowance
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _peak() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
