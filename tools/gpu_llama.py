"""llama.cpp's library, v0.5.0, as an engine that gpu_model.py times: libllama, libggml and its CUDA back end."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from ctypes import c_char, c_char_p, c_int8, c_int32, c_uint32, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from trigraph.runtime.execution.threads import choose_threads

LIBRARIES = ("libggml-base*.so", "libggml.*so", "libllama.*so")
"""In the order of their needs; they load their back ends themselves."""
PIECE = 2048
"""Tokens of a prompt in one call, and in one step."""


class ModelParams(ctypes.Structure):
    """The fields of llama_model_params that are set, with room for the others, which keep their defaults."""

    _fields_ = (("devices", c_void_p), ("buffers", c_void_p), ("gpu_layers", c_int32), ("split", c_int32),
                ("load", c_int32), ("rest", c_char * 484))  # fmt: skip


class ContextParams(ctypes.Structure):
    """Likewise, of llama_context_params."""

    _fields_ = (("context", c_uint32), ("batch", c_uint32), ("step", c_uint32), ("sequences", c_uint32),
                ("rest", c_char * 496))  # fmt: skip


class Override(ctypes.Structure):
    """Tensors whose names match a pattern, and the kind of memory for them."""

    _fields_ = (("pattern", c_char_p), ("buffer", c_void_p))


class Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = (("count", c_int32), ("token", ctypes.POINTER(c_int32)), ("rows", c_void_p),
                ("position", ctypes.POINTER(c_int32)), ("sequences", ctypes.POINTER(c_int32)),
                ("sequence", ctypes.POINTER(ctypes.POINTER(c_int32))), ("logits", ctypes.POINTER(c_int8)))  # fmt: skip


class Llama:
    """A model that llama.cpp runs, with sequences of random tokens."""

    def __init__(self, folder: Path, model: Path, context: int, sequences: int, host_experts: int) -> None:
        """`host_experts`: layers whose experts the CPU computes. Raises RuntimeError where it does not load."""
        paths = [path for names in LIBRARIES for path in sorted(folder.glob(names))]
        self._loaded = [ctypes.CDLL(str(path), os.RTLD_NOW | os.RTLD_GLOBAL) for path in paths]
        self._call("ggml_backend_load_all_from_path", None, str(folder).encode())
        self._call("llama_backend_init", None)
        params = self._call("llama_model_default_params", ModelParams)
        params.gpu_layers = 999
        if host_experts:
            kind = self._call("ggml_backend_cpu_buffer_type", c_void_p)
            pattern = rf"blk\.({'|'.join(map(str, range(host_experts)))})\.ffn_(up|down|gate)_exps".encode()
            self._overrides = (Override * 2)(Override(pattern, kind), Override(None, None))
            params.buffers, params.load = ctypes.addressof(self._overrides), 0  # not mapped
        loaded = self._call("llama_model_load_from_file", c_void_p, str(model).encode(), params)
        settings = self._call("llama_context_default_params", ContextParams)
        settings.context, settings.batch, settings.step = context * sequences, PIECE, PIECE
        settings.sequences = sequences
        self._context = loaded and c_void_p(self._call("llama_init_from_model", c_void_p, c_void_p(loaded), settings))
        if not self._context:
            raise RuntimeError("llama.cpp does not load the model; standard error says why")
        threads, _ = choose_threads(None)
        self._call("llama_set_n_threads", None, self._context, threads, threads)
        vocab = self._call("llama_model_get_vocab", c_void_p, c_void_p(loaded))
        self._vocab = self._call("llama_vocab_n_tokens", c_int32, c_void_p(vocab))
        self._batch = self._call("llama_batch_init", Batch, PIECE, 0, 1)
        self._random, self._lengths = np.random.default_rng(0), [0] * sequences

    def _call(self, name: str, result: Any, *arguments: Any) -> Any:
        function = next(getattr(library, name) for library in self._loaded if hasattr(library, name))
        function.restype = result
        return function(*arguments)

    def clear(self) -> None:
        """Empties all sequences."""
        memory = self._call("llama_get_memory", c_void_p, self._context)
        self._call("llama_memory_clear", None, c_void_p(memory), ctypes.c_bool(True))
        self._lengths = [0] * len(self._lengths)

    def prompt(self, sequence: int, count: int) -> float:
        """Seconds of a prompt, in a sequence that is empty."""
        before = [0] * sequence
        return sum(self.step([*before, min(PIECE, count - at)], all_logits=False) for at in range(0, count, PIECE))

    def step(self, counts: Sequence[int], *, all_logits: bool = True) -> float:
        """Seconds of a step with so many tokens of each of the first sequences."""
        at, batch = 0, self._batch
        for sequence, count in enumerate(counts):
            for place in range(count):
                batch.token[at] = int(self._random.integers(0, self._vocab))
                batch.position[at] = self._lengths[sequence] + place
                batch.sequences[at], batch.sequence[at][0] = 1, sequence
                batch.logits[at] = all_logits or place == count - 1
                at += 1
            self._lengths[sequence] += count
        batch.count = at
        started = time.perf_counter()
        if self._call("llama_decode", c_int32, self._context, batch):
            raise RuntimeError("llama.cpp does not run a step")
        self._call("llama_synchronize", None, self._context)
        return time.perf_counter() - started
