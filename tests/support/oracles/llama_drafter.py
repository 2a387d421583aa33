"""A block drafter in llama.cpp, by the C functions that the wheel `xllamacpp` exports."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from support.oracles.llama_steps import DECODE, KEEP_HIDDEN, POINTER, LlamaSteps, row_of
from trigraph.models.drafter.config import BlockDrafterConfig

Rows = npt.NDArray[np.float32]

_FLOATS = ctypes.POINTER(ctypes.c_float)
_TAP = "_Z30llama_set_embeddings_layer_inpP13llama_contextjb"  # C++ functions only
_TAPPED = "_Z30llama_get_embeddings_layer_inpP13llama_contextj"
_EXTRA = "_Z26llama_get_embeddings_nextnP13llama_context"
_FUNCTIONS: dict[str, tuple[Any, Sequence[Any]]] = {
    _TAP: (None, [POINTER, ctypes.c_uint32, ctypes.c_bool]),
    _TAPPED: (_FLOATS, [POINTER, ctypes.c_uint32]),
    _EXTRA: (_FLOATS, [POINTER]),
    "llama_set_causal_attn": (None, [POINTER, ctypes.c_bool]),
    "llama_get_memory": (POINTER, [POINTER]),
    "llama_memory_seq_rm": (ctypes.c_bool, [POINTER, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]),
}


class LlamaDrafter:
    """A model over a whole text, and a drafter that follows it. Skips the test where the wheel lacks what it needs."""

    def __init__(
        self, target: Path, drafter: Path, config: BlockDrafterConfig, vocab: int, text: Sequence[int]
    ) -> None:
        self._stack, self._config, self._vocab = ExitStack(), config, vocab
        models = [LlamaSteps(path, vocab, len(text) + config.block) for path in (target, drafter)]
        for model in models:
            self._stack.callback(model.close)
        self._c = models[0].c
        if missing := [name for name in _FUNCTIONS if not hasattr(self._c, name)]:
            pytest.skip(f"xllamacpp does not export {', '.join(missing)}: no comparison with llama.cpp")
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._c, name)
            function.restype, function.argtypes = result, arguments
        trunk = self._stack.enter_context(models[0].context())
        self._own = self._stack.enter_context(models[1].context(ctx_other=trunk, swa=True))
        for tap in config.taps:
            getattr(self._c, _TAP)(trunk, tap, True)
        getattr(self._c, KEEP_HIDDEN)(self._own, True, False)
        self._c.llama_set_causal_attn(self._own, any(config.causal))
        self._step(trunk, list(text), 0)
        taps = [self._taken(getattr(self._c, _TAPPED)(trunk, tap), len(text), config.hidden) for tap in config.taps]
        self._features = np.ascontiguousarray(np.concatenate(taps, -1))
        self._length = 0

    def close(self) -> None:
        """Gives all memory back."""
        self._stack.close()

    def follow(self, length: int) -> None:
        """Extend the drafter's context to the text's first `length` tokens."""
        for at in range(self._length, length, 16):
            self._step(self._own, list(self._features[at : min(at + 16, length)]), at)
        self._length = length

    def draft(self, token: int, rows: int) -> tuple[Rows, Rows]:
        """Logits [rows, vocab] of a block behind the context, and what llama.cpp's walk reads [rows, hidden].

        Of dspark, logits are those behind the best token of the row before; of dflash2, what the walk reads are the
        candidates, then the scores of each by predecessor.
        """
        self._step(self._own, [token] + [self._config.mask] * (rows - 1), self._length)
        logits = [self._taken(self._c.llama_get_logits_ith(self._own, row), self._vocab) for row in range(rows)]
        extra = self._taken(getattr(self._c, _EXTRA)(self._own), rows, self._config.hidden)
        memory = self._c.llama_get_memory(self._own)
        assert self._c.llama_memory_seq_rm(memory, 0, self._length, -1)
        return np.stack(logits), extra

    def _step(self, context: int, rows: Sequence[Any], start: int) -> None:
        """Rows are tokens, of which all give logits, or features, of which none does."""
        batch = self._c.llama_batch_ext_init(context)
        for index, row in enumerate(rows):
            if tokens := not isinstance(row, np.ndarray):
                added = self._c.llama_batch_ext_add_token(batch, 0, int(row))
            else:
                added = self._c.llama_batch_ext_add_embd(batch, 0, row_of(row))
            assert added == index
            place = (ctypes.c_int32 * 4)(*[start + index] * 3, 0)
            assert self._c.llama_batch_ext_set_pos(batch, index, place)
            assert self._c.llama_batch_ext_set_output_logits(batch, index, tokens)
        assert self._c.llama_process(context, DECODE, batch) == 0
        self._c.llama_batch_ext_free(batch)

    @staticmethod
    def _taken(pointer: Any, *shape: int) -> Rows:
        return np.ctypeslib.as_array(pointer, shape).copy()
