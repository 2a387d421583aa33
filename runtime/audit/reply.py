"""Reads an answer from the JSON of a server, which may be anything."""

from __future__ import annotations

import json
import math
from typing import Any

from trigraph.models.errors import quote
from trigraph.runtime.audit.answer import Answer
from trigraph.runtime.audit.connection import ServerError

_NAMES = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}
_LONGEST_NAME = 4096  # of a model, a fingerprint, a reason


def parse(content: bytes) -> dict[str, Any]:
    """The object that some JSON is. Raises ServerError."""
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ServerError("malformed", f"not JSON ({quote(content[:60])})") from error
    answer: dict[str, Any] = _checked(parsed, dict, "the answer")
    return answer


class Reply:
    """An answer of at most `most` tokens, put together from one response or from the chunks of a stream."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._reasoning: list[str] = []
        self._text: list[str] = []
        self._tokens: list[str] = []
        self._logprobs: list[float | None] = []
        self._indices: set[int] = set()
        self._names: dict[str, dict[str, None]] = {"model": {}, "system_fingerprint": {}, "finish_reason": {}}
        self._usage: tuple[int | None, int | None] | None = None
        self._size = 0

    @property
    def ended(self) -> bool:
        """Whether a reason of the end was given."""
        return bool(self._names["finish_reason"])

    def add(self, chunk: dict[str, Any]) -> None:
        """Reads a chunk. Raises ServerError for what is no part of an answer."""
        for name in ("model", "system_fingerprint"):
            self._name(chunk, name)
        if usage := _field(chunk, "usage", dict, ""):
            counts = (_field(usage, f"{kind}_tokens", int, "usage.") for kind in ("prompt", "completion"))
            prompt, completion = counts
            self._usage = None if prompt is completion is None else (prompt, completion)
        for i, each in enumerate(_field(chunk, "choices", list, "") or []):
            choice = _checked(each, dict, f"choices[{i}]")
            index = _field(choice, "index", int, "choices[].")
            index = i if index is None else index
            self._indices.add(index)
            if index == min(self._indices):
                self._choice(choice)

    def answer(self) -> Answer:
        """The answer. Raises ServerError where there is none."""
        if not self._indices:
            raise ServerError("malformed", "the answer has no choices")
        reasoning = "".join(self._reasoning)
        known = any(value is not None for value in self._logprobs)
        model, fingerprint, finish = (", ".join(names) if names else None for names in self._names.values())
        return Answer(
            text=reasoning + "".join(self._text),
            tokens=tuple(self._tokens) or None,
            logprobs=tuple(self._logprobs) if known else None,
            finish_reason=finish,
            usage=self._usage,
            model=model,
            fingerprint=fingerprint,
            reasoning=len(reasoning),
            choices=len(self._indices),
        )

    def _choice(self, choice: dict[str, Any]) -> None:
        where = "choices[]."
        self._name(choice, "finish_reason")
        for name in ("message", "delta"):
            message = _field(choice, name, dict, where) or {}
            own = f"{where}{name}."
            thought = _field(message, "reasoning_content", str, own) or _field(message, "reasoning", str, own)
            self._add(self._reasoning, thought)
            self._add(self._text, _field(message, "content", str, own))
        self._add(self._text, _field(choice, "text", str, where))
        logprobs = _field(choice, "logprobs", dict, where) or {}
        where += "logprobs."
        for each in _field(logprobs, "content", list, where) or []:
            entry = _checked(each, dict, f"{where}content[]")
            self._tokens.append(_token(entry.get("token"), f"{where}content[].token"))
            self._logprobs.append(_number(entry.get("logprob"), f"{where}content[].logprob"))
        for token in _field(logprobs, "tokens", list, where) or []:
            self._tokens.append(_token(token, f"{where}tokens[]"))
        for value in _field(logprobs, "token_logprobs", list, where) or []:
            self._logprobs.append(_number(value, f"{where}token_logprobs[]"))
        if max(len(self._tokens), len(self._logprobs)) > 64 + 16 * self._most:
            raise ServerError("too long", f"more than {64 + 16 * self._most} tokens; {self._most} were requested")

    def _add(self, pieces: list[str], piece: str | None) -> None:
        if piece:
            pieces.append(piece)
            self._size += len(piece)
        if self._size > (longest := 1000 + 300 * self._most):
            raise ServerError(
                "too long", f"a text of more than {longest} characters; {self._most} tokens were requested"
            )

    def _name(self, holder: dict[str, Any], name: str) -> None:
        value = _field(holder, name, str, "")
        if value is None:
            return
        names = self._names[name]
        names[value] = None
        if sum(map(len, names)) > _LONGEST_NAME:
            raise ServerError("malformed", f"{name} is longer than {_LONGEST_NAME} characters")


def _field(holder: dict[str, Any], name: str, kind: type, where: str) -> Any:
    """A field, or None where it is missing or null."""
    value = holder.get(name)
    return None if value is None else _checked(value, kind, where + name)


def _checked(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        told = _NAMES.get(type(value)) if isinstance(value, (dict, list)) else quote(value)
        raise ServerError("malformed", f"{where} is {told}; it must be {_NAMES[kind]}")
    return value


def _token(value: Any, where: str) -> str:
    """A token; some servers give its id."""
    return str(value) if type(value) is int else str(_checked(value, str, where))


def _number(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ServerError("malformed", f"{where} is {quote(value)[:60]}; it must be a number")
    try:
        return math.nan if value != value else float(value)
    except OverflowError:
        return math.inf
