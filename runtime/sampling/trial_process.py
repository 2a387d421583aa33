"""Compiles grammars for `trial.py`: a line of settings and then a request per line on stdin, responses on stdout.

Where a grammar overflows the stack, it ends this process and no other. It imports nothing else of the project, so it
starts quickly; `limited/start.py` calls it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from functools import lru_cache
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_NAME = re.compile(r"<[^<>\s]+>")
_IDS = 1 << 19  # more than any model has
_LOOK_SECONDS = 0.02  # between looks at the processor's time


def main(memory: int) -> None:
    """Responds to requests until stdin ends."""
    settings = json.loads(sys.stdin.readline())
    if hasattr(os, "nice"):
        os.nice(settings["niceness"])
    library = _library()
    limits = library.LLParserLimits(**settings["limits"])
    threading.stack_size(settings["stack"])
    _respond({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        response: dict[str, Any] = {}
        started = time.process_time()
        thread = threading.Thread(target=_try, args=(library, limits, request, response), daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_LOOK_SECONDS)
            if time.process_time() - started > request["seconds"] and thread.is_alive():
                _respond({"late": True})
                return
        _respond(response)


def _try(library: ModuleType, limits: Any, request: dict[str, Any], response: dict[str, Any]) -> None:
    """Compiles a grammar, and makes a matcher of it as far as that can be done without the model's vocabulary."""
    started, grammar = time.thread_time(), request["grammar"]
    failed, messages = library.LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
    if not failed and request["whole"]:
        vocabulary = _vocabulary(library, tuple(sorted({*_NAME.findall(_lark(grammar))})))
        matcher = library.LLMatcher(vocabulary, grammar, log_level=0, limits=limits)
        matcher.compute_ff_tokens()
        matcher.compute_bitmask()
    response |= {"message": messages[0] if failed else None, "seconds": time.thread_time() - started}


def _library() -> ModuleType:
    """The compiled part of llguidance; the rest of the package takes three times as long to import."""
    package = find_spec("llguidance")
    assert package is not None
    sys.modules["llguidance"] = module_from_spec(package)
    from llguidance import _lib

    return _lib


def _lark(grammar: str) -> str:
    """The parts of a grammar that may name control tokens."""
    if not grammar.startswith("{"):
        return grammar
    return "\n".join(part.get("lark_grammar") or "" for part in json.loads(grammar)["grammars"])


@lru_cache(4)
def _vocabulary(library: ModuleType, names: tuple[str, ...]) -> Any:
    return library.LLTokenizer(_Bytes(names))


class _Bytes:
    """A vocabulary of bytes and the control tokens that a grammar names, as llguidance reads one."""

    is_tokenizer_wrapper = True
    eos_token_id, bos_token_id = 0, None

    def __init__(self, names: tuple[str, ...]) -> None:
        control = ["<end>", *names]
        self.special_token_ids = list(range(len(control)))
        self.tokens = [*(name.encode() for name in control), *(bytes([byte]) for byte in range(256))]
        if any(name.startswith("<[") for name in names):  # ids, and ranges of them
            self.tokens += [b""] * (_IDS - len(self.tokens))

    def __call__(self, text: str) -> list[int]:
        return [len(self.special_token_ids) + byte for byte in text.encode()]


def _respond(content: dict[str, Any]) -> None:
    print(json.dumps(content), flush=True)
