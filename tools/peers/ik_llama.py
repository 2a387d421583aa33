"""ik_llama.cpp, on the same file with the same number of threads: as the weights are, or repacked when loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from peers import ik_llama_process
from peers.peer_process import PeerProcess
from trigraph.models.errors import TrigraphError


def check_ik_llama() -> None:
    """Raises TrigraphError when there is no ik_llama.cpp to compare with: for a check before the work."""
    if find_spec("ik_llama_cpp") is None:
        raise TrigraphError("--versus ik_llama needs ik-llama-cpp-python: pip install ik-llama-cpp-python")


class IkLlama:
    """A model in ik_llama.cpp; see Contender. Its bindings know no MTP head."""

    drafters: Mapping[str, int] = {}

    def __init__(self, path: Path, threads: int, context: int, chunk: int, *, repack: bool) -> None:
        """`repack`: as its option -rtr. Raises TrigraphError when it cannot load the file."""
        check_ik_llama()
        self.name = "ik_llama-rtr" if repack else "ik_llama"
        settings = dict(path=str(path), threads=threads, context=context, chunk=chunk, repack=repack)
        try:
            self._process = PeerProcess("ik_llama", Path(ik_llama_process.__file__), settings)
        except TrigraphError as error:
            raise TrigraphError(f"{path}: {error}") from error

    def reset(self) -> None:
        """Empties the sequence."""
        self._process.ask({})

    def prefill(self, tokens: Sequence[int]) -> float:
        """Appends tokens; the logits of the last one are computed."""
        return self._append(tokens, all_logits=False)

    def verify(self, tokens: Sequence[int]) -> float:
        """Appends 1 to 8 tokens; the logits of each one are computed."""
        return self._append(tokens, all_logits=True)

    def draft(self, token: int) -> float:
        """One step of the MTP head, which continues from its last one."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends a process of its own."""
        self._process.close()

    def _append(self, tokens: Sequence[int], all_logits: bool) -> float:
        seconds: float = self._process.ask(dict(tokens=list(tokens), all_logits=all_logits))["seconds"]
        return seconds
