"""The chat template of a model, rendered in a sandbox: it comes from the model file, so nobody vouches for it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trigraph.models.errors import TrigraphError
from trigraph.runtime.stats import peak_memory

Message = Mapping[str, Any]

_MAX_SECONDS = 5.0
_MAX_OUTPUT = 8 << 20  # characters
_MAX_MEMORY = 512 << 20  # bytes that rendering may add
_MAX_NUMBER = 1 << 20  # of repetitions, padding and the like


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, closed also to single operations that would take very long or fill the memory."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(x) if hasattr(x, "__len__") else abs(x) for x in (left, right)]
        if operator == "**" or any(hasattr(x, "__len__") for x in (left, right)):
            self._refuse_above(sizes[0] * sizes[1])
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (jinja2's names)
        for value in (*args, *kwargs.values()):
            if isinstance(value, int):
                __self._refuse_above(abs(value))
        return super().call(__context, __obj, *args, **kwargs)

    @staticmethod
    def _refuse_above(number: float) -> None:
        if number > _MAX_NUMBER:
            raise SecurityError(f"it works with numbers above {_MAX_NUMBER}")


class ChatTemplate:
    """Turns messages into the text that a model was trained to continue."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens`: texts of tokens that templates name (`eos_token`). Raises TrigraphError on bad syntax."""
        environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, **special_tokens)
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise TrigraphError(
                f"the chat template has an error ({error}); use --raw to complete plain text"
            ) from error

    def render(self, messages: SequenceOf[Message], *, add_generation_prompt: bool = True) -> str:
        """The conversation as text; with the generation prompt, the assistant speaks next.

        Raises TrigraphError when the template fails, refuses the messages, or exceeds limits of time and size.
        """
        pieces, size = [], 0
        try:
            with _bounded():
                for piece in self._template.generate(messages=messages, add_generation_prompt=add_generation_prompt):
                    size += len(piece)
                    if size > _MAX_OUTPUT:
                        raise SecurityError(f"it makes more than {_MAX_OUTPUT} characters")
                    pieces.append(piece)
        except (
            TemplateError,
            ArithmeticError,
            MemoryError,
            RecursionError,
            TypeError,
            ValueError,
            LookupError,
        ) as error:
            raise TrigraphError(
                f"the chat template failed ({error or type(error).__name__}); use --raw to complete plain text"
            ) from error
        return "".join(pieces)


@contextmanager
def _bounded() -> Iterator[None]:
    """Ends the template's code when it exceeds its time or memory; checked on each of its lines."""
    deadline = time.monotonic() + _MAX_SECONDS
    most = (peak_memory() or 0) + _MAX_MEMORY

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if time.monotonic() > deadline:
            raise SecurityError(f"it runs for more than {_MAX_SECONDS:g} s")
        if (peak_memory() or 0) > most:
            raise SecurityError(f"it takes more than {_MAX_MEMORY >> 20} MiB of memory")
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(previous)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(value: Any, indent: int | None = None, **ignored: Any) -> str:
    # jinja2's own filter escapes HTML, which a model never saw.
    return json.dumps(value, ensure_ascii=False, indent=indent)
