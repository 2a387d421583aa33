"""llama.cpp's own server loop, with slots and continuous batching, on the same file with the same number of threads."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from peers import llama_server_process
from peers.peer_process import PeerProcess
from trigraph.models.errors import TrigraphError
from trigraph.runtime.bench.load import Load, Served, ServedLoad

PEERS = ("llama.cpp", "llama.cpp-mtp")


def check_llama_server() -> None:
    """Raises TrigraphError when there is no llama.cpp server to compare with: for a check before the work."""
    if find_spec("xllamacpp") is None:
        raise TrigraphError("--requests with --versus needs xllamacpp: pip install xllamacpp")


class LlamaServer:
    """llama.cpp's server. Its process lives until `close`; between loads its threads sleep."""

    def __init__(self, path: Path, threads: int, context: int, slots: int, *, cache: bool = False, mtp: bool = False):
        """`context`: tokens of a slot; `cache`: whether prompts may begin with what a slot holds; `mtp`: whether it
        drafts with the model's MTP head. Raises TrigraphError when it cannot load the file.
        """
        check_llama_server()
        self.name = "llama.cpp-mtp" if mtp else "llama.cpp"
        self.settings = (
            f"xllamacpp, {slots} slots of {context} tokens, continuous batching, flash attention, f16 KV, batches of "
            f"2048 and 512 tokens, prompt cache {'on' if cache else 'off'}, "
            f"drafts {'of the MTP head' if mtp else 'off'}"
        )
        settings = dict(path=str(path), threads=threads, context=context, slots=slots, cache=cache, mtp=mtp)
        try:
            self._process = PeerProcess("llama.cpp", Path(llama_server_process.__file__), settings)
        except TrigraphError as error:
            raise TrigraphError(f"{path}: llama.cpp cannot serve this file: {error}") from error

    def serve(self, load: Load) -> ServedLoad:
        """Serves the load, and returns when all is there. Raises TrigraphError when it cannot."""
        answer = self._process.ask(asdict(load))
        return ServedLoad([Served(**served) for served in answer["served"]], answer["peak_memory"])

    def close(self) -> None:
        """Ends it and gives its memory back."""
        self._process.close()
