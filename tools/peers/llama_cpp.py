"""llama.cpp, through llama-cpp-python's C bindings, on the same file with the same number of threads."""

import ctypes
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from trigraph.models.errors import TrigraphError
from trigraph.runtime.bench.sample import seconds

# The callback that silences the library, which may call it long after the model that set it is gone.
_kept: list[Any] = []


def check_llama_cpp() -> None:
    """Raises TrigraphError when there is no llama.cpp to compare with: for a check before the work."""
    if find_spec("llama_cpp") is None:
        raise TrigraphError("--versus llama.cpp needs llama-cpp-python: pip install llama-cpp-python")


class LlamaCpp:
    """A model in llama.cpp; see Contender."""

    name = "llama.cpp"

    def __init__(self, path: Path, threads: int, context: int, chunk: int = 512) -> None:
        check_llama_cpp()
        import llama_cpp

        self._api: Any = llama_cpp.llama_cpp
        _kept.append(self._api.llama_log_callback(lambda *_: None))
        self._api.llama_log_set(_kept[-1], None)
        parameters = self._api.llama_model_default_params()
        parameters.load_mtp = True
        self._model = self._api.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise TrigraphError(f"{path}: llama.cpp cannot load this file")
        self._hidden = int(self._api.llama_model_n_embd(self._model))
        self._chunk = chunk
        self._trunk = self._context(threads, context, kind=0)
        has_mtp = self._api.llama_model_n_layer_nextn(self._model) > 0
        self._head = self._context(threads, context, kind=1) if has_mtp else None
        self._head_position = 0
        self._position = 0

    def _context(self, threads: int, context: int, kind: int) -> Any:
        parameters = self._api.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = context, self._chunk, self._chunk
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.ctx_type = kind
        if kind:
            parameters.ctx_other = self._trunk
        made = self._api.llama_init_from_model(self._model, parameters)
        if not made:
            raise TrigraphError("llama.cpp cannot make a context for this model")
        return made

    def reset(self) -> None:
        """Empties the sequence."""
        self._api.llama_memory_clear(self._api.llama_get_memory(self._trunk), True)
        self._position = 0

    def prefill(self, tokens: Sequence[int]) -> float:
        """Appends tokens; the logits of the last one are computed."""
        return seconds(lambda: self._prefill(tokens))

    def verify(self, tokens: Sequence[int]) -> float:
        """Appends 1 to 8 tokens; the logits of each one are computed."""
        return seconds(lambda: self._verify(tokens))

    def draft(self, token: int) -> float:
        """One step of the MTP head, which continues from its last one."""
        return seconds(lambda: self._draft(token))

    def close(self) -> None:
        """Ends a process of its own. Its memory is the process's."""

    def _prefill(self, tokens: Sequence[int]) -> None:
        for start in range(0, len(tokens), self._chunk):
            part = tokens[start : start + self._chunk]
            last = start + len(part) == len(tokens)
            self._decode(part, [last and i == len(part) - 1 for i in range(len(part))])
        self._api.llama_synchronize(self._trunk)

    def _verify(self, tokens: Sequence[int]) -> None:
        self._decode(tokens, [True] * len(tokens))
        self._api.llama_synchronize(self._trunk)

    def _decode(self, tokens: Sequence[int], wants_logits: Sequence[bool]) -> None:
        batch = self._api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = self._position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = wants_logits[i]
        status = self._api.llama_decode(self._trunk, batch)
        self._api.llama_batch_free(batch)
        if status:
            raise TrigraphError(f"llama_decode failed with status {status}")
        self._position += len(tokens)

    def _draft(self, token: int) -> None:
        """The hidden state is arbitrary: the cost does not depend on its values."""
        state = np.full(self._hidden, 0.5, np.float32)
        row = self._api.llama_embd(state.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), 1, self._hidden)
        position = self._api.llama_pos(self._head_position)
        batch = self._api.llama_batch_ext_init(self._head)
        index = self._api.llama_batch_ext_add_token(batch, 0, token)
        ready = (
            index >= 0
            and self._api.llama_batch_ext_set_embd_token(batch, index, row)
            and self._api.llama_batch_ext_set_pos(batch, index, ctypes.byref(position))
            and self._api.llama_batch_ext_set_output_logits(batch, index, True)
        )
        status = self._api.llama_process(self._head, 1, batch) if ready else -1
        self._api.llama_batch_ext_free(batch)
        if status:
            raise TrigraphError(f"llama.cpp's draft step failed with status {status}")
        self._api.llama_synchronize(self._head)
        self._head_position += 1

    @property
    def drafters(self) -> Mapping[str, int]:
        """What drafts, with the rows of a run."""
        return {} if self._head is None else {"draft": 1}
