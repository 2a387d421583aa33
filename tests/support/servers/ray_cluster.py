"""Engines on a Ray cluster of this process's own, and how to kill one."""

from __future__ import annotations

import os
import re
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any

import ray
from ray import serve

from trigraph.runtime.server.cluster.deployment import PREFIX_ROUTER, Deployed, engines_on
from trigraph.runtime.server.cluster.remote_engine import RemoteEngine

MARK = "TRIGRAPH_TEST_CLUSTER"
NAME = "trigraph"
_TITLE = re.compile(rb"ServeReplica:[\w.-]+:engine")


@contextmanager
def engines(
    model: Path, replicas: int, most: int | None = None, router: str = PREFIX_ROUTER, **arguments: Any
) -> Iterator[RemoteEngine]:
    """Replicas of one thread each, while the block runs. `arguments`: those of `load`, and of the replicas' class."""
    os.environ[MARK] = str(uuid.uuid4())
    deployed = Deployed(str(model), replicas, most, {"threads": 1, **arguments}, router)
    try:
        yield engines_on(None, NAME, deployed)
    finally:
        ray.shutdown()
        del os.environ[MARK]


def replica_ids() -> list[int]:
    """The process ids of the replicas of this process's cluster."""
    return sorted(int(folder.name) for folder in processes() if _TITLE.search((folder / "cmdline").read_bytes()))


def processor_seconds() -> float:
    """What the replicas of this process's cluster have computed."""
    stats = (Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split() for each in replica_ids())
    return sum(int(user) + int(system) for *_, user, system in (stat[:13] for stat in stats)) / os.sysconf("SC_CLK_TCK")


def states() -> dict[str, int]:
    """How many replicas are in which state."""
    found: dict[str, int] = serve.status().applications[NAME].deployments["engine"].replica_states
    return found


def await_replicas(count: int, seconds: float = 600) -> None:
    """Returns when so many replicas run, and no others start or stop."""
    deadline = time.monotonic() + seconds
    while (found := states()) != {"RUNNING": count}:
        if time.monotonic() > deadline:
            raise TimeoutError(f"replicas after {seconds} s: {found}")
        time.sleep(0.1)
    time.sleep(0.5)  # until fronts know


def serving_ids() -> list[int]:
    """Those of the replicas that have loaded their engine: Ray Serve opens its port of a replica then."""
    sockets = _listening_sockets()
    return [each for each in replica_ids() if sum(link in sockets for link in _links(Path(f"/proc/{each}"))) > 1]


def listening() -> list[str]:
    """The addresses that the cluster's processes listen at, this one's included; those that Linux knows of."""
    sockets = _listening_sockets()
    links = [link for folder in (*processes(), Path("/proc/self")) for link in _links(folder)]
    return sorted(sockets[link] for link in links if link in sockets)


def _listening_sockets() -> dict[str, str]:
    """The addresses of all sockets that listen, by what links to them in /proc say."""
    sockets = {}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":  # listening
                sockets[f"socket:[{fields[9]}]"] = _address(fields[1].partition(":")[0])
    return sockets


def _links(process: Path) -> Iterator[str]:
    with suppress(OSError):
        for entry in (process / "fd").iterdir():
            with suppress(OSError):
                yield os.readlink(entry)


def processes() -> Iterator[Path]:
    """The folders in /proc of those that belong to the cluster."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or is not ours
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                yield folder


def _address(words: str) -> str:
    """An address as /proc/net writes it: in words of 32 bits, as the processor has them."""
    data = b"".join(bytes.fromhex(words[i : i + 8])[::-1] for i in range(0, len(words), 8))
    address = ip_address(data)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def kill(process: int) -> None:
    """As a crash, or a machine without power, ends it."""
    os.kill(process, signal.SIGKILL)
