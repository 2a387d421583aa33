"""Engines on a Ray cluster of this process's own, and how to kill one."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from trigraph.runtime.server.ray import PREFIX_ROUTER, Deployed, engines_on
from trigraph.runtime.server.remote import RemoteEngine

MARK = "TRIGRAPH_TEST_CLUSTER"
_TITLE = b"ServeReplica:trigraph:engine"


@contextmanager
def engines(model: Path, replicas: int, router: str = PREFIX_ROUTER, **arguments: Any) -> Iterator[RemoteEngine]:
    """Replicas of one thread each, while the block runs."""
    os.environ[MARK] = str(uuid.uuid4())
    try:
        yield engines_on(None, Deployed(str(model), replicas, None, {"threads": 1, **arguments}, router))
    finally:
        ray.shutdown()
        del os.environ[MARK]


def replica_ids() -> list[int]:
    """The process ids of the replicas of this process's cluster."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if _TITLE in (folder / "cmdline").read_bytes() and mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:  # it has just ended, or is not ours
            pass
    return sorted(found)


def kill(process: int) -> None:
    """As a crash, or a machine without power, ends it."""
    os.kill(process, signal.SIGKILL)
