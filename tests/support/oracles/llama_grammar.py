"""llama.cpp's own grammars, by functions that the wheel `xllamacpp` exports: whether a text is what one describes."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_PARSE = "_Z23llama_grammar_init_implPK11llama_vocabPKcS3_bPS3_mPKim"
_ACCEPT, _STACKS, _FREE = (
    "_Z20llama_grammar_acceptP13llama_grammarj",
    "_Z24llama_grammar_get_stacksP13llama_grammar",
    "_Z23llama_grammar_free_implP13llama_grammar",
)


class _Vector(ctypes.Structure):
    _fields_ = [("begin", _POINTER), ("end", _POINTER), ("room", _POINTER)]


def llama_accepts(grammar: str, text: str) -> bool | None:
    """Whether llama.cpp takes the whole text for one of the grammar; None where it does not take the grammar.

    Skips the test where the wheel or its functions are not there.
    """
    c = _functions()
    parsed = getattr(c, _PARSE)(None, grammar.encode(), b"root", False, None, 0, None, 0)
    if not parsed:
        return None
    try:
        for character in text:
            getattr(c, _ACCEPT)(parsed, ord(character))
        stacks = _Vector.from_address(getattr(c, _STACKS)(parsed))
        width, begin = ctypes.sizeof(_Vector), stacks.begin or 0
        ways = [_Vector.from_address(begin + at) for at in range(0, (stacks.end or 0) - begin, width)]
        return any(way.begin == way.end for way in ways)
    finally:
        getattr(c, _FREE)(parsed)


def _functions() -> Any:
    xllamacpp: Any = pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: no comparison")
    (library,) = Path(xllamacpp.__file__).parent.glob("xllamacpp*.so")
    c = ctypes.CDLL(str(library))
    if not all(hasattr(c, name) for name in (_PARSE, _ACCEPT, _STACKS, _FREE)):
        pytest.skip("this xllamacpp does not export llama.cpp's grammar functions")
    getattr(c, _PARSE).restype = getattr(c, _STACKS).restype = _POINTER
    getattr(c, _PARSE).argtypes = [
        _POINTER,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_bool,
        _POINTER,
        _SIZE,
        _POINTER,
        _SIZE,
    ]
    getattr(c, _ACCEPT).argtypes = [_POINTER, ctypes.c_uint32]
    getattr(c, _STACKS).argtypes = getattr(c, _FREE).argtypes = [_POINTER]
    return c
