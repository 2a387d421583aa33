"""Weights that are repacked in the background: steps read the mapped files until the faster copies are there."""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from dataclasses import replace

from trigraph.custom_ops import library_function
from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.memory import free_memory, is_shortage
from trigraph.runtime.device.repack.weights import SIDE_BY_SIDE, RepackedWeights, bytes_of_copies
from trigraph.runtime.execution.package_graphs import PackageGraphs
from trigraph.runtime.execution.steps import Steps

_log = logging.getLogger("trigraph.repacking")

LEAST_BYTES = 256 << 20
"""The fewest bytes of weights that are repacked unless that is asked for."""

_MARGIN = 0.1  # of the free memory stays for others
_REST = 5  # times as long as a piece took, while steps run
_LONGEST_REST = 0.1  # seconds
_START = 1.0  # seconds after loading: a request that comes at once has the machine for itself
_GRACE = 5.0  # seconds after loading in which nothing is copied while steps run
_PROMPT_GRACE = 60.0  # the same while they read a prompt


class Repacking:
    """A thread that copies weights into the order in which products read them, and then has the steps read the copies.

    A step gives the same bits from either, so the change may come between any two steps. While steps run, the thread
    works a sixth of the time, in the first seconds not at all, and in the first minute not beside a prompt. It ends
    when the steps are dropped.
    """

    def __init__(self, graphs: PackageGraphs, steps: Steps) -> None:
        """`graphs`: those that the steps run now."""
        self.layout = "plain, being repacked"
        """How the weights lie that steps read, in a few words."""
        self._steps = weakref.ref(steps)
        self._started = time.monotonic()
        self._stopped = threading.Event()
        copies = RepackedWeights(graphs.last.source.mapped, graphs.last.device.kernels, self._pause)
        self._thread = threading.Thread(target=self._run, args=(graphs, copies), name="trigraph-repacking", daemon=True)
        self._thread.start()
        _all.add(self)

    def stop(self) -> None:
        """Has the thread end within milliseconds, unless it is about to change over. Returns at once."""
        self._stopped.set()

    def wait(self) -> None:
        """Until the steps read the copies, or never will."""
        self._thread.join()

    def _pause(self, seconds: float) -> None:
        """Leaves the machine to steps, after a piece of so many seconds. Raises _StoppedError."""
        while True:
            steps = self._steps()
            if steps is None or self._stopped.is_set():
                raise _StoppedError
            if not (busy := not steps.lock.acquire(blocking=False)):
                steps.lock.release()
            grace = _PROMPT_GRACE if steps.prefilling else _GRACE
            del steps  # which the program may drop meanwhile
            if not busy:
                return
            early = time.monotonic() - self._started < grace
            time.sleep(_LONGEST_REST if early else min(_REST * seconds, _LONGEST_REST))
            if not early:
                return

    def _run(self, graphs: PackageGraphs, copies: RepackedWeights) -> None:
        self._stopped.wait(_START)
        try:
            self._pause(0)
            repacked = replace(graphs, parts=[replace(graphs.last, source=copies)])
            self.layout = "repacked" if self._change_over(repacked, copies) else "plain"
        except _StoppedError:
            self.layout = "plain"
        except Exception as error:
            if not isinstance(error, TrigraphError) and not is_shortage(error):
                _log.exception("repacking has failed; steps go on with plain weights")
            self.layout = f"plain, as repacking has failed: {error}"

    def _change_over(self, graphs: PackageGraphs, copies: RepackedWeights) -> bool:
        """Whether there was something to repack."""
        # Drafts last: see RepackedWeights.copies.
        names = [name for name in ("prefill", "verify", "draft", "block") if name in graphs.manifest.graphs]
        prepared = {name: graphs.prepare(name) for name in names}
        if not copies.copies:
            return False
        if (steps := self._steps()) is None:
            raise _StoppedError
        if not steps.can_draft:
            prepared.pop("draft", None)
        if steps.block is None:
            prepared.pop("block", None)
        opened = {name: graphs.open(graph, steps.state) for name, graph in prepared.items()}
        steps.change_over(opened["prefill"], opened["verify"], opened.get("draft"), opened.get("block"))
        copies.release_mapped()
        return True


class _StoppedError(Exception):
    """Copies are no longer wanted."""


def begin_repacking(graphs: PackageGraphs, steps: Steps, weight_bytes: int, share: float) -> Repacking | str:
    """Begins to repack weights that take `weight_bytes`; or says, in a few words, how they stay.

    `share`: the part of free memory that is this process's, 1 unless it is one of several replicas.
    """
    device = graphs.last.device
    if device.kernels not in SIDE_BY_SIDE or weight_bytes < LEAST_BYTES or library_function("trigraph_repack") is None:
        return "plain"
    free = free_memory()
    if free is not None:
        # Copies, and the mapped files until they are made.
        needed = weight_bytes + bytes_of_copies(graphs.load("verify").graph)
        if needed > (room := share * (1 - _MARGIN) * free):
            return f"plain: repacking takes {needed / 1e9:.1f} GB of memory, of which {room / 1e9:.1f} GB can be had"
    return Repacking(graphs, steps)


_all: weakref.WeakSet[Repacking] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """A thread that copies when Python ends would bring the process down."""
    for repacking in [*_all]:
        repacking.stop()
        repacking.wait()
