"""llama.cpp's own steps, by the C functions that the wheel `xllamacpp` exports.

They give the logits of a prompt with embeddings of images in it, and those of its MTP head. Its server has neither.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Rows = npt.NDArray[np.floating[Any]]
Ids = npt.NDArray[np.int64]

POINTER, _I32, _F32 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float
_CONTEXT = 1024
_PART = 256  # tokens that llama.cpp computes at once
_NO_FLASH, _HEAD = 0, 1  # of flash_attn_type and ctx_type
DECODE = 1
_TYPE_F32 = 0
_NO_ROWS = np.empty((0, 0), np.float32)
KEEP_HIDDEN = "_Z26llama_set_embeddings_nextnP13llama_contextbb"  # what a head hands on has C++ functions only
_HIDDEN = "_Z30llama_get_embeddings_nextn_ithP13llama_contexti"
_SYMBOLS = (
    *(KEEP_HIDDEN, _HIDDEN),
    *("llama_backend_init", "llama_log_set", "llama_model_default_params", "llama_model_load_from_file"),
    *("llama_model_free", "llama_context_default_params", "llama_init_from_model", "llama_free", "llama_process"),
    *("llama_get_logits_ith", "llama_batch_ext_init", "llama_batch_ext_free", "llama_batch_ext_add_token"),
    *("llama_batch_ext_add_embd", "llama_batch_ext_set_embd_state", "llama_batch_ext_set_pos"),
    "llama_batch_ext_set_output_logits",
)


class _ModelParameters(ctypes.Structure):
    _fields_ = [
        *[(name, POINTER) for name in ("devices", "overrides")],
        *[(name, _I32) for name in ("n_gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu")],
        *[(name, POINTER) for name in ("tensor_split", "progress", "progress_data", "kv_overrides")],
        *[(name, ctypes.c_bool) for name in ("vocab_only", "check", "extra", "no_host", "no_alloc", "load_mtp")],
    ]


class _ContextParameters(ctypes.Structure):
    _fields_ = [
        *[(name, _I32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "outputs", "outputs_seq")],
        *[(name, _I32) for name in ("n_threads", "n_threads_batch", "ctx_type", "scaling", "pooling", "attention")],
        ("flash_attn_type", _I32),
        *[(f"rope_{number}", _F32) for number in range(8)],
        *[(name, POINTER) for name in ("evaluated", "evaluated_data")],
        *[(name, _I32) for name in ("type_k", "type_v")],
        *[(name, POINTER) for name in ("expert_cache", "abort", "abort_data")],
        *[(name, ctypes.c_bool) for name in ("embeddings", "offload", "no_perf", "op_offload", "swa", "unified")],
        *[(name, POINTER) for name in ("samplers", "n_samplers", "ctx_other")],
    ]


class _Row(ctypes.Structure):
    _fields_ = [("data", POINTER), ("rows", ctypes.c_size_t), ("width", ctypes.c_size_t)]


class LlamaSteps:
    """A model in llama.cpp: float32 keys and values, no fused attention, one thread.

    Skips the test where the wheel, a function of its C interface, or the layout of its parameters is not there.
    """

    def __init__(self, path: Path, vocab: int, context: int = _CONTEXT, **settings: int) -> None:
        """`settings`: other values of parameters of its contexts."""
        xllamacpp: Any = pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: no comparison")
        (library,) = Path(xllamacpp.__file__).parent.glob("xllamacpp*.so")
        self.c, self._vocab, self._length = _functions(library), vocab, context
        self._settings = settings
        parameters = self.c.llama_model_default_params()
        parameters.n_gpu_layers, parameters.load_mtp = 0, True
        self._model = self.c.llama_model_load_from_file(str(path).encode(), parameters)
        assert self._model, "llama.cpp does not load the model"

    def close(self) -> None:
        """Gives the model's memory back."""
        self.c.llama_model_free(self._model)

    def trunk(self, ids: Ids, image_rows: Rows = _NO_ROWS, positions: Ids | None = None) -> npt.NDArray[np.float32]:
        """Logits of every token [T, vocab]. An id of vocab + k is row k of `image_rows`. `positions`: [3, T]."""
        with self.context() as context:
            return self._logits(context, ids, image_rows, _text(ids) if positions is None else positions, None)

    def head(self, ids: Ids, before: Rows, image_rows: Rows, positions: Ids) -> npt.NDArray[np.float32]:
        """Logits of the MTP head [T, vocab], each from a token, its position and the hidden row of the token before."""
        with self.context() as trunk, self.context(ctx_type=_HEAD, ctx_other=trunk) as context:
            return self._logits(context, ids, image_rows, positions, before)

    def drafts(self, ids: Ids, before: Rows, count: int) -> npt.NDArray[np.float32]:
        """Logits of the MTP head behind `ids`, then behind each of its own drafts [count, vocab]; `before` as there."""
        with self.context() as trunk, self.context(ctx_type=_HEAD, ctx_other=trunk) as context:
            getattr(self.c, KEEP_HIDDEN)(context, True, False)
            rows, last = self._logits(context, ids, _NO_ROWS, _text(ids), before)[-1:], len(ids) - 1
            while len(rows) < count:
                handed = np.ctypeslib.as_array(getattr(self.c, _HIDDEN)(context, last), before[:1].shape[1:])[None]
                draft, last = rows[-1:].argmax(-1), 0
                place = _text(draft) + len(ids) + len(rows) - 1
                rows = np.concatenate([rows, self._logits(context, draft, _NO_ROWS, place, handed.copy())])
        return rows

    @contextmanager
    def context(self, **settings: Any) -> Iterator[int]:
        """A context of the model, for a while; `settings`: other values of its parameters."""
        parameters = self.c.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = self._length
        parameters.n_ubatch = _PART
        parameters.outputs_seq = 0  # no limit
        parameters.n_threads = parameters.n_threads_batch = 1
        parameters.type_k = parameters.type_v = _TYPE_F32
        parameters.flash_attn_type = _NO_FLASH
        for name, value in (self._settings | settings).items():
            setattr(parameters, name, value)
        context = self.c.llama_init_from_model(self._model, parameters)
        assert context, "llama.cpp makes no context"
        try:
            yield context
        finally:
            self.c.llama_free(context)

    def _logits(
        self, context: int, ids: Ids, image_rows: Rows, positions: Ids, before: Rows | None
    ) -> npt.NDArray[np.float32]:
        """Runs of tokens and runs of rows one after the other, as llama.cpp takes them."""
        rows, states = _float32(image_rows), None if before is None else _float32(before)
        axes = np.vstack([positions, np.zeros_like(positions[:1])]).astype(np.int32)
        found = np.empty((len(ids), self._vocab), np.float32)
        for _, run in itertools.groupby(range(len(ids)), lambda place: bool(ids[place] >= self._vocab)):
            places = [*run]
            batch = self.c.llama_batch_ext_init(context)
            for index, place in enumerate(places):
                self._add(batch, index, int(ids[place]), rows)
                if states is not None:
                    assert self.c.llama_batch_ext_set_embd_state(batch, index, row_of(states[place]))
                assert self.c.llama_batch_ext_set_pos(batch, index, (_I32 * 4)(*axes[:, place].tolist()))
                assert self.c.llama_batch_ext_set_output_logits(batch, index, True)
            assert self.c.llama_process(context, DECODE, batch) == 0
            for index, place in enumerate(places):
                found[place] = np.ctypeslib.as_array(self.c.llama_get_logits_ith(context, index), (self._vocab,))
            self.c.llama_batch_ext_free(batch)
        return found

    def _add(self, batch: int, index: int, token: int, rows: npt.NDArray[np.float32]) -> None:
        if token < self._vocab:
            assert self.c.llama_batch_ext_add_token(batch, 0, token) == index
        else:
            assert self.c.llama_batch_ext_add_embd(batch, 0, row_of(rows[token - self._vocab])) == index


_silent = ctypes.CFUNCTYPE(None, _I32, ctypes.c_char_p, POINTER)(lambda *_: None)


def _functions(path: Path) -> Any:
    """The library, with the types of its functions."""
    library = ctypes.CDLL(str(path))
    if missing := [name for name in _SYMBOLS if not hasattr(library, name)]:
        pytest.skip(f"xllamacpp does not export {', '.join(missing)}: no comparison with llama.cpp")
    types: dict[str, tuple[Any, Sequence[Any]]] = {
        "llama_model_default_params": (_ModelParameters, []),
        "llama_model_load_from_file": (POINTER, [ctypes.c_char_p, _ModelParameters]),
        "llama_model_free": (None, [POINTER]),
        "llama_context_default_params": (_ContextParameters, []),
        "llama_init_from_model": (POINTER, [POINTER, _ContextParameters]),
        "llama_free": (None, [POINTER]),
        "llama_batch_ext_init": (POINTER, [POINTER]),
        "llama_batch_ext_free": (None, [POINTER]),
        "llama_batch_ext_add_token": (_I32, [POINTER, _I32, _I32]),
        "llama_batch_ext_add_embd": (_I32, [POINTER, _I32, _Row]),
        "llama_batch_ext_set_embd_state": (ctypes.c_bool, [POINTER, _I32, _Row]),
        "llama_batch_ext_set_pos": (ctypes.c_bool, [POINTER, _I32, ctypes.POINTER(_I32)]),
        "llama_batch_ext_set_output_logits": (ctypes.c_bool, [POINTER, _I32, ctypes.c_bool]),
        "llama_process": (_I32, [POINTER, _I32, POINTER]),
        "llama_get_logits_ith": (ctypes.POINTER(_F32), [POINTER, _I32]),
        KEEP_HIDDEN: (None, [POINTER, ctypes.c_bool, ctypes.c_bool]),
        _HIDDEN: (ctypes.POINTER(_F32), [POINTER, _I32]),
    }
    for name, (result, arguments) in types.items():
        function: Callable[..., Any] = getattr(library, name)
        function.restype, function.argtypes = result, arguments  # type: ignore[attr-defined]
    library.llama_backend_init()
    library.llama_log_set(_silent, None)
    _check_layout(library)
    return library


def _check_layout(library: Any) -> None:
    """Skips the test where the parameters' defaults are not where they should be."""
    model, context = library.llama_model_default_params(), library.llama_context_default_params()
    seen = {
        "booleans of the model": bool(model.extra and not model.no_alloc),
        "sizes of the context": (context.n_seq_max, context.n_batch) == (1, 2048),
        "flash attention": context.flash_attn_type == -1,
        "types of keys and values": (context.type_k, context.type_v) == (1, 1),
        "other context": not context.ctx_other,
    }
    if wrong := [name for name, right in seen.items() if not right]:
        pytest.skip(f"xllamacpp lays its parameters out differently ({', '.join(wrong)}): no comparison")


def _text(ids: Ids) -> Ids:
    """Positions of a text from its start [3, T]."""
    return np.tile(np.arange(len(ids)), (3, 1))


def _float32(rows: Rows) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(rows, np.float32)


def row_of(row: npt.NDArray[np.float32]) -> _Row:
    return _Row(row.ctypes.data, 1, len(row))
