"""Renders a chat template for `template.py`: the template and then a request per line on stdin, responses on stdout.

It imports nothing else of the project, so it starts quickly; `limited/start.py` calls it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache
from itertools import takewhile
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MAX_SOURCE = 1 << 20  # characters
_MAX_OUTPUT = 8 << 20
_LARGE = 1 << 18  # bytes of a request


class GenerationTag(Extension):
    """`{% generation %}` marks what to train on, and renders its body."""

    tags = {"generation"}  # noqa: RUF012  # the base class declares it so

    def parse(self, parser: Parser) -> Node:
        """Parses the tag as its body alone."""
        line = next(parser.stream).lineno
        return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def main(memory: int) -> None:
    """Responds to requests until stdin ends, under a limit of `memory` bytes."""
    description = json.loads(sys.stdin.readline())
    compiled = cache(lambda: compile_template(**description))
    _respond("ready", True)
    for line in sys.stdin:
        _respond("texts", [*texts(compiled, json.loads(line), memory)])
        if len(line) > _LARGE:
            _trim_heap()


def texts(compiled: Callable[[], Template], request: Mapping[str, Any], memory: int) -> Iterator[Mapping[str, Any]]:
    """The text of each conversation of a request: how much of it the first one begins with, and the rest; or an error.

    After an error of the first one there is nothing. `compiled`: the template. `memory`: the limit in bytes.
    """
    first, size = list[str](), 0
    for number, chosen in enumerate(request["conversations"]):
        messages = [request["messages"][place] for place in chosen]
        try:
            pieces = render(compiled(), {**request["variables"], "messages": messages})
            shared = [a for a, b in takewhile(lambda pair: pair[0] == pair[1], zip(first, pieces, strict=False))]
            rest = "".join(pieces[len(shared) :])
            size = _checked(size + len(rest))
            yield {"shared": sum(map(len, shared)), "rest": rest}
            first = first or pieces
            continue
        except MemoryError:
            problem = f"it takes more than {memory >> 20} MiB of memory"
        except RecursionError:
            problem = "its recursion is too deep"
        except TemplateSyntaxError as error:
            problem = f"line {error.lineno}: {error}"
        except Exception as error:  # whatever a template may raise
            problem = str(error) or type(error).__name__
        yield {"error": problem}
        if not number:
            return


def compile_template(source: str, special_tokens: Mapping[str, str]) -> Template:
    """The template, in a sandbox."""
    if len(source) > _MAX_SOURCE:
        raise TemplateError(f"it has {len(source)} characters, more than the limit of {_MAX_SOURCE}")
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, **special_tokens)
    return environment.from_string(source)


def render(template: Template, variables: Mapping[str, Any]) -> list[str]:
    """The text of a template with these `variables`, in pieces."""
    pieces, size = [], 0
    for piece in template.generate(variables):
        size = _checked(size + len(piece))
        pieces.append(piece)
    return pieces


def _checked(size: int) -> int:
    if size > _MAX_OUTPUT:
        raise TemplateError(f"it produces more than {_MAX_OUTPUT} characters")
    return size


def _respond(kind: str, content: Any) -> None:
    print(json.dumps({kind: content}), flush=True)


def _trim_heap() -> None:
    """Gives the system back what a large request took."""
    if sys.platform == "linux":
        import ctypes

        if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
            trim(0)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
