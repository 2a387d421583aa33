"""The program that `runtime.template` runs to render chat templates: one request a line on stdin, one answer on stdout.

It imports nothing of ours, so it starts quickly. Its argument is the memory that it may take, in bytes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MAX_OUTPUT = 8 << 20  # characters


def main() -> None:
    """Answer requests until stdin ends."""
    memory = int(sys.argv[1])
    _limit(memory)
    _answer("ready", True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            _answer("text", render(request["source"], request["special_tokens"], request["variables"]))
        except MemoryError:
            _answer("error", f"it takes more than {memory >> 20} MiB of memory")
        except RecursionError:
            _answer("error", "it goes too deep: maximum recursion depth exceeded")
        except Exception as error:  # whatever a template may raise
            _answer("error", str(error) or type(error).__name__)


def render(source: str, special_tokens: Mapping[str, str], variables: Mapping[str, Any]) -> str:
    """The text that a template makes of `variables`."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, **special_tokens)
    pieces, size = [], 0
    for piece in environment.from_string(source).generate(variables):
        size += len(piece)
        if size > _MAX_OUTPUT:
            raise TemplateError(f"it makes more than {_MAX_OUTPUT} characters")
        pieces.append(piece)
    return "".join(pieces)


def _answer(kind: str, content: Any) -> None:
    print(json.dumps({kind: content}), flush=True)


def _limit(memory: int) -> None:
    """Limit memory, and forbid to write files, where the system can."""
    try:
        import resource
    except ImportError:
        return
    for kind, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        try:
            resource.setrlimit(kind, (most, most))
        except (ValueError, OSError):  # not on every system
            continue


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(value: Any, indent: int | None = None, **ignored: Any) -> str:
    # jinja2's own filter escapes HTML, which a model never saw.
    return json.dumps(value, ensure_ascii=False, indent=indent)


if __name__ == "__main__":
    main()
