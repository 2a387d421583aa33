"""Grammars of one shape each, small to far too large: each is refused or followed, by a thread with little stack.

Depth, width, left and right recursion, nullable cycles, repetition, classes of characters, and references.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support.fakes.engine import END, engine_of, scripted
from support.texts.hostile_grammars import WITHIN, chain, fan, rules
from trigraph.runtime.sampling.constraint import UNFORCED
from trigraph.runtime.sampling.guidance import matcher
from trigraph.runtime.sampling.json_schema import grammar_of

_STACK = 256 << 10  # less than any thread of a server has
_MOST_SECONDS = 0.5  # of a step, on a loaded machine: what holds a round up
_TOKENS = 40
_SIZES = (1, 3, 10, 14, 17, 30, 100, 300, 1000, 2000)


def _lines(count: int, body: str) -> str:
    """A rule for each number, with `{i}` and `{j}`, the next one, the last of which is a letter."""
    found = [f"r{i}: " + body.replace("{i}", str(i)).replace("{j}", str(i + 1)) for i in range(count)]
    return "\n".join(["start: r0", *found, f'r{count}: "b"', ""])


def _terminals(count: int, body: str) -> str:
    return _lines(count, body).replace("r", "R").replace("staRt", "start")


def _joined(count: int, part: str, by: str) -> str:
    return by.join(part.replace("{i}", str(i)) for i in range(count))


def _schema(schema: Any) -> str:
    return grammar_of(schema, {})


SHAPES: dict[str, Callable[[int], str]] = {
    "rules": rules,
    "terminals": lambda n: rules(n, "R"),
    "brackets": lambda n: _lines(n, '"x" r{j} "y"'),
    "optional": lambda n: _lines(n, "r{j}? r{j}?"),
    "left": lambda n: _lines(n, 'r{i} "a" | r{j}'),
    "right": lambda n: _lines(n, '"a" r{i} | r{j}'),
    "both": lambda n: _lines(n, 'r{i} r{i} | "a" | "" | r{j}'),
    "nullable": lambda n: _lines(n, 'r{j} r{j} | ""').replace(f'r{n}: "b"', f'r{n}: r0 r0 | ""'),
    "cycle": lambda n: _lines(n, "r{j}").replace(f'r{n}: "b"', f"r{n}: r0"),
    "or": lambda n: _terminals(n, 'r{j} | "b{i}"'),
    "and": lambda n: _terminals(n, "r{j} & ~/c{i}/"),
    "not": lambda n: _terminals(n, "~r{j} & /.*/"),
    "stars": lambda n: _terminals(n, '(r{j} "{i}")*'),
    "within": lambda n: _terminals(n, '"x" r{j}? "y"'),
    "wide": lambda n: "start: " + _joined(n, '"w{i}"', " | "),
    "all at once": lambda n: "start: " + _joined(n, '"{i}"?', " "),
    "parentheses": lambda n: "start: " + "(" * n + '"a"' + '? "b")' * n,
    "contains all": lambda n: "start: R\nR: " + _joined(n, "/(?s:.*)w{i}(?s:.*)/", " & "),
    "contains later": lambda n: 'start: R\nR: "a" | /[a-z]{3}/ (' + _joined(n, "/(?s:.*)w{i}(?s:.*)/", " & ") + ")",
    "contains one": lambda n: "start: R\nR: " + _joined(n, "/(?s:.*)w{i}(?s:.*)/", " | "),
    "alternatives": lambda n: "start: /" + _joined(n, "w{i}", "|") + "/",
    "dots": lambda n: "start: /" + _joined(n, "w{i}", ".*") + "/",
    "groups": lambda n: "start: /" + "(" * n + "a" + "b)*" * n + "/",
    "classes": lambda n: (
        "start: /[" + "".join(rf"\u{{{i * 50:x}}}-\u{{{i * 50 + 20:x}}}" for i in range(1, n)) + "z]*/"
    ),
    "unicode": lambda n: "start: /" + r"\p{L}\w\d" * n + "/",
    "question marks": lambda n: "start: /" + "a?" * n + "a" * n + "/",
    "far back": lambda n: f"start: /(a|b)*a(a|b){{{n}}}/",
    "repeated rule": lambda n: f'start: r{{0,{n * 100}}}\nr: "a" | "b" r',
    "repeated text": lambda n: f"start: /a{{0,{n * 100}}}/",
    "repeated repetition": lambda n: f'start: ((("a"{{1,{n}}}){{1,{n}}}){{1,{n}}}){{1,{n}}}',
    "cubed": lambda n: f"start: /[xy]((.{{1,{n}}}){{1,{n}}}){{1,{n}}}b/",
    "cubed exactly": lambda n: f"start: /((a{{{n}}}){{{n}}}){{{n}}}/",
    "enum": lambda n: _schema({"enum": [f"value {i}" for i in range(n * 10)]}),
    "items": lambda n: _schema({"type": "array", "minItems": n * 10, "items": {"type": "integer"}}),
    "length": lambda n: _schema({"type": "string", "minLength": n * 10, "maxLength": n * 20}),
    "properties": lambda n: _schema({"type": "object", "properties": {f"p{i}": {"$ref": "#"} for i in range(n)}}),
    "itself": lambda n: _schema({"anyOf": [{"type": "array", "items": {"$ref": "#"}}] * n}),
    "multiple": lambda n: _schema({"type": "integer", "multipleOf": n * 997}),
    "patterns": lambda n: _schema({"allOf": [{"type": "string", "pattern": f"w{i}"} for i in range(n)]}),
    **{f"chain of {name}": lambda n, name=name: _schema(chain(name, n)) for name in WITHIN},  # type: ignore[misc]
    **{f"fan of {name}": lambda n, name=name: _schema(fan(name, n)) for name in WITHIN},  # type: ignore[misc]
    "endless": lambda n: f"start: A B\nA: /(a{{1,{n}}}b)+/\nB: /a/",
    "within Lark": lambda n: "start: %json " + json.dumps(fan("items", n)),
}


class Fuzzer:
    """See fuzz.target.Target."""

    def __init__(self, folder: Path) -> None:
        engine, _ = engine_of(scripted(b"a", 1))
        self._vocabulary = engine.model._guidance_vocabulary

    def run(self, seed: int, case: int) -> str:
        """Follow one grammar in a thread of its own."""
        rng = random.Random(f"{seed}:{case}")
        shape = [*SHAPES][case % len(SHAPES)]
        size = _SIZES[(case + case // len(SHAPES)) % len(_SIZES)]
        text = SHAPES[shape](size)
        found = matcher(text if text.startswith("{") else text + UNFORCED, self._vocabulary)
        result: list[str] = []
        threading.stack_size(_STACK)
        thread = threading.Thread(target=lambda: result.append(_followed(found, rng)))
        thread.start()
        threading.stack_size(0)
        thread.join()
        assert result, f"{shape} of {size}"
        return result[0]


def _followed(found: Any, rng: random.Random) -> str:
    for _ in range(_TOKENS):
        if found.is_stopped():
            break
        _timed(found.compute_ff_tokens)
        mask = np.frombuffer(_timed(found.compute_bitmask), np.uint8)
        allowed = [int(token) for token in np.flatnonzero(np.unpackbits(mask, bitorder="little"))]
        if found.is_error() or not (free := [token for token in allowed if token != END]):
            break
        token = rng.choice(free)
        _timed(lambda token=token: found.validate_tokens([token]))  # type: ignore[misc]
        _timed(lambda token=token: found.consume_token(token))  # type: ignore[misc]
    return "ended" if found.is_error() else "followed"


def _timed(step: Callable[[], Any]) -> Any:
    started = time.thread_time()
    value = step()
    seconds = time.thread_time() - started
    assert seconds <= _MOST_SECONDS, f"a step takes {seconds:.2f} s"
    return value
