"""Times llama.cpp's library beside ours: `python tools/gpu_llama.py FOLDER MODEL WORK ...`, for tools/gpu.py.

FOLDER has libllama, libggml and its CUDA back end, with the headers of v0.5.0. WORK is a word of gpu_model.py: decode,
verify-N, prompt-N, sequences-N. Prints lines of JSON, as that does.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpu_model import found, median_ms
from trigraph.runtime.execution.threads import choose_threads

LIBRARIES = ("libggml-base*.so", "libggml.*so", "libllama.*so")
"""In the order of their needs; they load their back ends themselves."""
PIECE = 2048
"""Tokens of a prompt in one call, and in one step."""


class ModelParams(ctypes.Structure):
    """The fields of llama_model_params that are set, with room for the others, which keep their defaults."""

    _fields_ = (
        ("devices", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("gpu_layers", ctypes.c_int32),
        ("split", ctypes.c_int32),
        ("load", ctypes.c_int32),
        ("rest", ctypes.c_char * 484),
    )


class ContextParams(ctypes.Structure):
    """Likewise, of llama_context_params."""

    _fields_ = (
        ("context", ctypes.c_uint32),
        ("batch", ctypes.c_uint32),
        ("step", ctypes.c_uint32),
        ("sequences", ctypes.c_uint32),
        ("rest", ctypes.c_char * 496),
    )


class Override(ctypes.Structure):
    """Tensors whose names match a pattern, and the kind of memory for them."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer", ctypes.c_void_p))


class Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = (
        ("count", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("rows", ctypes.c_void_p),
        ("position", ctypes.POINTER(ctypes.c_int32)),
        ("sequences", ctypes.POINTER(ctypes.c_int32)),
        ("sequence", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


class Llama:
    """A model that llama.cpp runs."""

    def __init__(self, folder: Path, model: Path, context: int, sequences: int, host_experts: int) -> None:
        paths = [path for names in LIBRARIES for path in sorted(folder.glob(names))]
        self._loaded = [ctypes.CDLL(str(path), os.RTLD_NOW | os.RTLD_GLOBAL) for path in paths]
        self._call("ggml_backend_load_all_from_path", None, str(folder).encode())
        self._call("llama_backend_init", None)
        params = self._call("llama_model_default_params", ModelParams)
        params.gpu_layers = 999
        if host_experts:
            layers = "|".join(map(str, range(host_experts)))
            kind = self._call("ggml_backend_cpu_buffer_type", ctypes.c_void_p)
            pattern = rf"blk\.({layers})\.ffn_(up|down|gate)_exps".encode()
            self._overrides = (Override * 2)(Override(pattern, kind), Override(None, None))
            params.buffers, params.load = ctypes.addressof(self._overrides), 0  # not mapped
        self._model = self._call("llama_model_load_from_file", ctypes.c_void_p, str(model).encode(), params)
        settings = self._call("llama_context_default_params", ContextParams)
        settings.context, settings.batch, settings.step = context * sequences, PIECE, PIECE
        settings.sequences = sequences
        self._context = self._model and self._call(
            "llama_init_from_model", ctypes.c_void_p, ctypes.c_void_p(self._model), settings
        )
        if not self._context:
            raise RuntimeError("llama.cpp does not load the model; standard error says why")
        threads, _ = choose_threads(None)
        self._call("llama_set_n_threads", None, ctypes.c_void_p(self._context), threads, threads)
        vocab = self._call("llama_model_get_vocab", ctypes.c_void_p, ctypes.c_void_p(self._model))
        self._vocab = self._call("llama_vocab_n_tokens", ctypes.c_int32, ctypes.c_void_p(vocab))
        self._batch = self._call("llama_batch_init", Batch, PIECE, 0, 1)
        self._random, self._lengths = np.random.default_rng(0), [0] * sequences

    def _call(self, name: str, result: Any, *arguments: Any) -> Any:
        function = next(getattr(library, name) for library in self._loaded if hasattr(library, name))
        function.restype = result
        return function(*arguments)

    def step(self, counts: Sequence[int], *, all_logits: bool = True) -> float:
        """Seconds of a step with so many tokens of each of the first sequences."""
        at = 0
        for sequence, count in enumerate(counts):
            for place in range(count):
                self._batch.token[at] = int(self._random.integers(0, self._vocab))
                self._batch.position[at] = self._lengths[sequence] + place
                self._batch.sequences[at], self._batch.sequence[at][0] = 1, sequence
                self._batch.logits[at] = all_logits or place == count - 1
                at += 1
            self._lengths[sequence] += count
        self._batch.count = at
        started = time.perf_counter()
        if self._call("llama_decode", ctypes.c_int32, ctypes.c_void_p(self._context), self._batch):
            raise RuntimeError("llama.cpp does not run a step")
        self._call("llama_synchronize", None, ctypes.c_void_p(self._context))
        return time.perf_counter() - started

    def prompt(self, sequence: int, count: int) -> float:
        """Seconds of a prompt, in a sequence that is empty."""
        before = [0] * sequence
        return sum(self.step([*before, min(PIECE, count - at)], all_logits=False) for at in range(0, count, PIECE))

    def clear(self) -> None:
        """Empties all sequences."""
        memory = self._call("llama_get_memory", ctypes.c_void_p, ctypes.c_void_p(self._context))
        self._call("llama_memory_clear", None, ctypes.c_void_p(memory), ctypes.c_bool(True))
        self._lengths = [0] * len(self._lengths)


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("work", nargs="+")
    parser.add_argument("--after", type=int, default=4096)
    parser.add_argument("--host-experts", type=int, default=0, help="Layers whose experts the CPU computes")
    options = parser.parse_args()
    words = [(kind, int(count or 1)) for kind, _, count in (word.partition("-") for word in options.work)]
    most = max([count for kind, count in words if kind == "sequences"], default=1)
    context = max([options.after, *(count for kind, count in words if kind == "prompt")]) + 1024
    llama = Llama(options.folder, options.model, context, most, options.host_experts)
    for kind, count in words:
        llama.clear()
        if kind == "prompt":
            times = []
            for _ in range(3):
                llama.clear()
                times.append(1e3 * llama.prompt(0, count))
            found(f"prompt of {count}", times[0], min(times[1:]))
            continue
        sequences = count if kind == "sequences" else 1
        for sequence in range(sequences):
            llama.prompt(sequence, options.after)
        counts = [1] * sequences if kind == "sequences" else [count]
        step = median_ms(partial(llama.step, counts))
        found({"decode": "decode", "verify": f"verify of {count}"}.get(kind, f"decode of {count} sequences"), step)
    sys.stdout.flush()
    os._exit(0)  # its destructors have crashed


if __name__ == "__main__":
    main()
