"""Structured output: a JSON schema, a grammar or a regular expression says which tokens may come next."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

from trigraph.models.checks import check
from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.sampling.gbnf_lark import lark_of
from trigraph.runtime.sampling.guidance import library, plain, verdict
from trigraph.runtime.sampling.json_schema import Enforced, Note, enforced, grammar_of
from trigraph.runtime.sampling.references import check_lark
from trigraph.runtime.sampling.semaphore import BusyError

# A blank, or a line's end and the next one's indentation: without a limit, a small model may never stop indenting.
_JSON_SPACE = r" |\n[ \t]{0,32}"
# Of `/(ab)+/ "a"`, llguidance forces "ab" for ever: a lexeme goes on as long as it can. Only grammars that we write are
# known to have none of these; in others no text is forced. The last such line stands.
UNFORCED = '\n%llguidance {"no_forcing": true}\n'
_LARK = re.compile(r"(?m)^[^\S\n]*(?:%llguidance\b|start\s*:(?!:=))")
_RULE = re.compile(r"(?m)^[ \t]*[?!]*[A-Za-z_][\w-]*[^\n:]{0,100}:")
_MOST_RULES = 1000


@dataclass(frozen=True)
class Constraint(ABC):
    """What a completion must be. Raises TrigraphError when it is malformed, or `llguidance` is not installed."""

    noun: ClassVar[str]
    longest: ClassVar[int] = 256 << 10
    """Most characters, which take about a second."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type == "str":
                check(f"the {field.name} of a {type(self).__name__}", getattr(self, field.name), str)
                self._check_length(len(getattr(self, field.name)))
        if (error := verdict(self.grammar()).message) is not None:
            raise self._fault(error)

    @classmethod
    def _check_length(cls, length: int) -> None:
        """Raises TrigraphError for one of more characters than there may be."""
        if length > cls.longest:
            raise cls._fault(f"it has more than {cls.longest:,} characters")

    @abstractmethod
    def grammar(self) -> str:
        """The constraint as llguidance writes it."""

    @property
    def notes(self) -> tuple[Note, ...]:
        """The parts of it that completions are not held to."""
        return ()

    @classmethod
    def _fault(cls, reason: str) -> TrigraphError:
        return TrigraphError(f"the {cls.noun} cannot be used: {' '.join(reason.split())[:500]}")


class PydanticModel(Protocol):
    """A class that says how its objects look in JSON, as those of Pydantic do."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        """Returns its JSON schema."""


@dataclass(frozen=True)
class JsonSchema(Constraint):
    """JSON that a schema describes: JSON text, a dict, or a Pydantic model, whose schema it is then.

    `notes` lists the keywords that are not enforced.
    """

    schema: str
    noun = "JSON schema"
    longest = 1 << 20  # descriptions take no time

    def __init__(self, schema: str | Mapping[str, Any] | type[PydanticModel]) -> None:
        object.__setattr__(self, "schema", self._text(schema))
        self.__post_init__()

    def grammar(self) -> str:
        """The schema's enforced part."""
        return grammar_of(self._enforced.schema, self._enforced.options)

    @property
    def notes(self) -> tuple[Note, ...]:
        """The keywords that completions are not held to."""
        return self._enforced.notes

    def _text(self, schema: str | Mapping[str, Any] | type[PydanticModel]) -> str:
        model = isinstance(schema, type) and hasattr(schema, "model_json_schema")
        if not (model or isinstance(schema, str | Mapping)):
            raise TrigraphError(f"the JSON schema is {quote(schema)}; give JSON text, a dict or a Pydantic model")
        try:
            if isinstance(schema, type):
                schema = schema.model_json_schema()
            return json.dumps(schema) if isinstance(schema, Mapping) else schema
        except (TypeError, ValueError, RecursionError) as error:
            raise self._fault(f"it is not JSON ({error})") from error

    @property
    def _enforced(self) -> Enforced:
        # No cached_property: all schemas wait for the one that holds its lock in Python 3.11.
        if "_known" not in vars(self):
            vars(self)["_known"] = self._read()
        return vars(self)["_known"]  # type: ignore[no-any-return]

    def _read(self) -> Enforced:
        try:
            schema = json.loads(self.schema)
        except (ValueError, RecursionError) as error:
            raise self._fault(f"it is not JSON ({error})") from error
        if not isinstance(schema, dict):
            raise self._fault("it must be a JSON object")
        try:
            return enforced(schema, {"whitespace_pattern": _JSON_SPACE})
        except BusyError:
            raise
        except ValueError as error:
            raise self._fault(str(error)) from error


@dataclass(frozen=True)
class Grammar(Constraint):
    """Text that a context-free grammar generates, in llguidance's dialect of Lark or llama.cpp's GBNF."""

    text: str
    noun = "grammar"

    def grammar(self) -> str:
        """The grammar in Lark."""
        # They take a time that grows with their square, and a chain of them as many calls.
        if max(self.text.count("::="), len(_RULE.findall(self.text))) > _MOST_RULES:
            raise self._fault(f"it has more than {_MOST_RULES:,} rules")
        try:
            lark = self.text if _LARK.search(self.text) else lark_of(self.text)
            check_lark(lark)
            return str(library().LLMatcher.grammar_from_lark(lark + UNFORCED))
        except (ValueError, RecursionError) as error:
            raise self._fault(plain(str(error))) from error


@dataclass(frozen=True)
class Regex(Constraint):
    """Text that a regular expression, in the syntax of Rust's `regex`, matches from beginning to end."""

    pattern: str
    noun = "regular expression"

    def grammar(self) -> str:
        """A grammar of the expression alone."""
        try:
            return str(library().LLMatcher.grammar_from_regex(self.pattern))
        except ValueError as error:
            raise self._fault(str(error)) from error
