"""`trigraph bench` with other engines on the same file, in turns: steps, or loads of requests.

Usage: python tools/versus.py MODEL.gguf --versus llama.cpp,ik_llama-rtr
       python tools/versus.py MODEL.gguf --versus llama.cpp,llama.cpp-mtp --requests 16
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

import typer

from peers.ik_llama import IkLlama, check_ik_llama
from peers.llama_cpp import LlamaCpp, check_llama_cpp
from peers.llama_server import LlamaServer, check_llama_server
from tool import run_tool
from trigraph.models.errors import TrigraphError
from trigraph.runtime.bench import bench_requests
from trigraph.runtime.bench.contender import OpenContender
from trigraph.runtime.bench.load import OpenServer, Server
from trigraph.runtime.bench.request_options import RequestOptions
from trigraph.runtime.cli.command import grouped
from trigraph.runtime.cli.measure import (
    BenchModelArguments,
    BenchOutputArguments,
    BenchRequestArguments,
    BenchWorkArguments,
    run_benchmark,
)


def _server(path: Path, options: RequestOptions, context: int, *, mtp: bool) -> Server:
    cache = options.shared_prefix > 0
    return LlamaServer(path, options.threads, context, max(options.concurrency), cache=cache, mtp=mtp)


class _StepPeer(NamedTuple):
    check: Callable[[], None]
    open: OpenContender


STEP_PEERS = {
    "llama.cpp": _StepPeer(check_llama_cpp, LlamaCpp),
    "ik_llama": _StepPeer(check_ik_llama, lambda *settings: IkLlama(*settings, repack=False)),
    "ik_llama-rtr": _StepPeer(check_ik_llama, lambda *settings: IkLlama(*settings, repack=True)),
}
SERVERS: dict[str, OpenServer] = {
    "llama.cpp": lambda *settings: _server(*settings, mtp=False),
    "llama.cpp-mtp": lambda *settings: _server(*settings, mtp=True),
}


@dataclass(frozen=True)
class VersusArguments:
    """The other engines."""

    panel: ClassVar = "Engines"

    versus: Annotated[
        str,
        typer.Option(
            help="Engines, comma-separated: llama.cpp, ik_llama, ik_llama-rtr (weights repacked when loaded); with "
            "--requests llama.cpp (its server) and llama.cpp-mtp (with drafts of the MTP head)."
        ),
    ]

    def steps(self) -> list[OpenContender]:
        """Engines whose steps are timed. Raises TrigraphError when one is unknown or not installed."""
        for name in self.versus.split(","):
            if name not in STEP_PEERS:
                raise TrigraphError(f"--versus {name}: without --requests it is one of {', '.join(STEP_PEERS)}")
            STEP_PEERS[name].check()
        return [STEP_PEERS[name].open for name in self.versus.split(",")]

    def servers(self) -> list[OpenServer]:
        """Engines that serve loads. Raises TrigraphError when one is unknown or not installed."""
        for name in self.versus.split(","):
            if name not in SERVERS:
                raise TrigraphError(f"--versus {name}: with --requests it is one of {', '.join(SERVERS)}")
        check_llama_server()
        return [SERVERS[name] for name in self.versus.split(",")]


@grouped
def versus(
    engines: VersusArguments,
    measured: BenchModelArguments,
    work: BenchWorkArguments,
    load: BenchRequestArguments,
    output: BenchOutputArguments,
) -> None:
    """Time trigraph and other engines on the same file, in turns."""
    if load.requests is None:
        run_benchmark(measured, work, load, output, contenders=engines.steps())
    elif work.accept is not None:
        raise TrigraphError("--accept replaces trigraph's own drafts; leave it out with --requests")
    else:
        run_benchmark(measured, work, load, output, serve=partial(bench_requests, others=engines.servers()))


if __name__ == "__main__":
    run_tool(versus)
