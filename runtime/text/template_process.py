"""Renders chat templates for `template.py`: a request per line on stdin, a response per line on stdout.

It imports nothing else of the project, so it starts quickly. Its argument is its memory limit in bytes.
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
    """Responds to requests until stdin ends."""
    memory = int(sys.argv[1])
    _limit(memory)
    _respond("ready", True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            _respond("text", render(request["source"], request["special_tokens"], request["variables"]))
        except MemoryError:
            _respond("error", f"it takes more than {memory >> 20} MiB of memory")
        except RecursionError:
            _respond("error", "its recursion is too deep")
        except Exception as error:  # whatever a template may raise
            _respond("error", str(error) or type(error).__name__)


def render(source: str, special_tokens: Mapping[str, str], variables: Mapping[str, Any]) -> str:
    """The text of a template with these `variables`."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, **special_tokens)
    pieces, size = [], 0
    for piece in environment.from_string(source).generate(variables):
        size += len(piece)
        if size > _MAX_OUTPUT:
            raise TemplateError(f"it produces more than {_MAX_OUTPUT} characters")
        pieces.append(piece)
    return "".join(pieces)


def _respond(kind: str, content: Any) -> None:
    print(json.dumps({kind: content}), flush=True)


def _limit(memory: int) -> None:
    """Limits memory and forbids writing files, where the system can."""
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
    # jinja2's own filter escapes HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=False, indent=indent)


if __name__ == "__main__":
    main()
