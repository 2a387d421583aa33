"""The other engines whose steps can be timed beside ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from trigraph.models.errors import TrigraphError
from trigraph.runtime.bench.contender import Contender
from trigraph.runtime.bench.ik_llama import IkLlama, check_ik_llama
from trigraph.runtime.bench.llama_cpp import LlamaCpp, check_llama_cpp


class _Peer(NamedTuple):
    check: Callable[[], None]
    open: Callable[[Path, int, int, int], Contender]  # of path, threads, context, chunk


_PEERS = {
    "llama.cpp": _Peer(check_llama_cpp, LlamaCpp),
    "ik_llama": _Peer(check_ik_llama, lambda *settings: IkLlama(*settings, repack=False)),
    "ik_llama-rtr": _Peer(check_ik_llama, lambda *settings: IkLlama(*settings, repack=True)),
}
STEP_PEERS = tuple(_PEERS)


def check_peers(names: Sequence[str]) -> None:
    """Raises TrigraphError when an engine is unknown or not installed: for a check before the work."""
    for name in names:
        if name not in _PEERS:
            raise TrigraphError(f"--versus {name}: without --requests it is one of {', '.join(_PEERS)}")
        _PEERS[name].check()


def open_peer(name: str, path: Path, threads: int, context: int, chunk: int) -> Contender:
    """An engine of STEP_PEERS with a model file. Raises TrigraphError when it cannot load the file."""
    return _PEERS[name].open(path, threads, context, chunk)
