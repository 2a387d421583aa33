"""ik_llama.cpp in a process of its own: reads a line of JSON for each step, and answers with its time.

Its libraries bear the names of llama.cpp's, so no process can hold both. It imports nothing but the standard library
and `ik_llama_cpp`.
"""

import ctypes
import json
import os
import sys
import time
from typing import Any


class Model:
    """One sequence of a model."""

    def __init__(self, path: str, threads: int, context: int, chunk: int, repack: bool) -> None:
        """Raises RuntimeError when the library cannot load the file."""
        from ik_llama_cpp import _ctypes_api

        self._api: Any = _ctypes_api
        self._api._lib.llama_synchronize.argtypes = [ctypes.c_void_p]
        parameters = self._api.llama_model_default_params()
        parameters.repack_tensors, parameters.use_mmap = repack, not repack  # what is mapped cannot be repacked
        model = self._api.llama_model_load_from_file(path.encode(), parameters)
        if not model:
            raise RuntimeError("it cannot load this file (a cut model must have no MTP head: trigraph synth --no-mtp)")
        parameters = self._api.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = context, chunk, chunk
        parameters.n_threads = parameters.n_threads_batch = threads
        self._context = self._api.llama_init_from_model(model, parameters)
        if not self._context:
            raise RuntimeError("it cannot make a context for this model")
        self._chunk = chunk
        self._position = 0

    def reset(self) -> None:
        """Empties the sequence."""
        self._api.llama_kv_cache_clear(self._context)
        self._position = 0

    def append(self, tokens: list[int], all_logits: bool) -> float:
        """Seconds that it took to compute these tokens, with the logits of all of them or of the last one."""
        started = time.perf_counter()
        for start in range(0, len(tokens), self._chunk):
            part = tokens[start : start + self._chunk]
            last = start + len(part) == len(tokens)
            self._decode(part, [all_logits or (last and i == len(part) - 1) for i in range(len(part))])
        self._api._lib.llama_synchronize(self._context)
        return time.perf_counter() - started

    def _decode(self, tokens: list[int], wants_logits: list[bool]) -> None:
        batch = self._api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = self._position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = wants_logits[i]
        status = self._api.llama_decode(self._context, batch)
        self._api.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode failed with status {status}")
        self._position += len(tokens)


def main() -> None:
    """Computes steps until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed
    model = None
    for line in sys.stdin:
        question = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if model is None:
                model = Model(**question)
            elif question:
                answer["seconds"] = model.append(**question)
            else:
                model.reset()
        except (OSError, RuntimeError) as error:
            answer["error"] = str(error)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
