"""Structured output: a JSON schema, a grammar or a regular expression says which tokens may come next.

The library `llguidance` does the parsing. A constraint sees the chosen tokens of a completion in order and nothing
else, no drafts either, so the text is the same with and without speculation.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, fields
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trigraph.models.checks import check
from trigraph.models.errors import TrigraphError
from trigraph.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# A blank, or a line's end and the next one's indentation: without a limit, a small model may never stop indenting.
_JSON_SPACE = r" |\n[ \t]{0,32}"


@dataclass(frozen=True)
class Constraint(ABC):
    """What a completion must be. Raises TrigraphError when it is malformed, or `llguidance` is not installed."""

    noun: ClassVar[str]

    def __post_init__(self) -> None:
        for field in fields(self):
            check(f"the {field.name} of a {type(self).__name__}", getattr(self, field.name), str)
        grammar = self.grammar()
        failed, messages = _library().LLMatcher.validate_grammar_with_warnings(grammar)
        if failed:
            raise self._fault(messages[0])

    @abstractmethod
    def grammar(self) -> str:
        """The same as llguidance writes it."""

    def _fault(self, reason: str) -> TrigraphError:
        return TrigraphError(f"the {self.noun} cannot be used: {' '.join(reason.split())}")


@dataclass(frozen=True)
class JsonSchema(Constraint):
    """JSON that a schema, given as JSON text, describes. Keywords that cannot be kept to are refused."""

    schema: str
    noun = "JSON schema"

    def grammar(self) -> str:
        """See Constraint."""
        try:
            schema = json.loads(self.schema)
        except (ValueError, RecursionError) as error:
            raise self._fault(f"it is not JSON ({error})") from error
        if not isinstance(schema, dict):
            raise self._fault("it must be a JSON object")
        options = {"whitespace_pattern": _JSON_SPACE}
        try:
            return str(_library().LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=options))
        except ValueError as error:
            raise self._fault(str(error)) from error


@dataclass(frozen=True)
class Grammar(Constraint):
    """Text that a context-free grammar generates, in llguidance's dialect of Lark or llama.cpp's GBNF."""

    text: str
    noun = "grammar"

    def grammar(self) -> str:
        """See Constraint."""
        try:
            return str(_library().grammar_from("grammar", self.text))
        except (ValueError, RecursionError) as error:
            raise self._fault(str(error)) from error


@dataclass(frozen=True)
class Regex(Constraint):
    """Text that a regular expression, in the syntax of Rust's `regex`, matches from beginning to end."""

    pattern: str
    noun = "regular expression"

    def grammar(self) -> str:
        """See Constraint."""
        try:
            return str(_library().LLMatcher.grammar_from_regex(self.pattern))
        except ValueError as error:
            raise self._fault(str(error)) from error


class Guide:
    """A completion's progress under a constraint."""

    def __init__(self, constraint: Constraint, vocabulary: LLTokenizer) -> None:
        self._matcher: Any = _library().LLMatcher(vocabulary, constraint.grammar(), log_level=0)
        self._noun = constraint.noun
        self._vocab = vocabulary.vocab_size
        self._forced: deque[int] = deque()
        self._look_ahead()

    @property
    def finished(self) -> bool:
        """Whether nothing may follow any more."""
        return bool(self._matcher.is_stopped())

    @property
    def forced(self) -> list[int]:
        """The next tokens, as far as the constraint leaves no choice of characters and that is known."""
        return list(self._forced)

    def allows(self, token: int) -> bool:
        """Whether `token` may come next; a stop token may where the completion could end. Costs microseconds."""
        return bool(self._matcher.validate_tokens([token]) == 1)

    def allowed(self) -> NDArray[np.int64]:
        """Ids of all tokens that may come next, in order. Looks at the whole vocabulary."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.flatnonzero(np.unpackbits(mask, count=self._vocab, bitorder="little").view(bool))

    def advance(self, token: int) -> None:
        """Takes the token that was chosen."""
        self._matcher.consume_token(token)
        self._check()
        if self._forced:
            self._forced.popleft()
        if not self._forced:
            self._look_ahead()

    def _look_ahead(self) -> None:
        self._forced.extend(self._matcher.compute_ff_tokens())
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = " ".join(self._matcher.get_error().split("<state>")[0].split())
            if reason.startswith("NoExtension"):
                reason = "no text fits"
            raise TrigraphError(f"the {self._noun} cannot be followed any further: {reason}")


class _Vocabulary:
    """The tokens as llguidance asks for them. Its own reading of `tokenizer.json` would force texts in NFC, and control
    tokens where a text spells their names."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.special_token_ids = tokenizer.control_ids
        self.eos_token_id = min(tokenizer.stop_ids)
        self.bos_token_id = tokenizer.bos_id
        self.tokens = tokenizer.all_bytes()
        self._encode = tokenizer.encode_exactly

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


def guidance_vocabulary(tokenizer: Tokenizer, vocab: int) -> LLTokenizer:
    """The tokens as a Guide wants them, for a model with `vocab` of them; a second for 248320."""
    if not tokenizer.stop_ids:
        raise TrigraphError("the model has no stop token, so a completion could not end where a constraint allows it")
    library = _library()
    wrapped = library.TokenizerWrapper(_Vocabulary(tokenizer))
    try:
        made: LLTokenizer = library.LLTokenizer(wrapped, n_vocab=vocab, eos_token=sorted(tokenizer.stop_ids))
    except (ValueError, RuntimeError) as error:
        raise TrigraphError(f"this model's tokenizer cannot be used with constraints: {error}") from error
    return made


def _library() -> ModuleType:
    try:
        import llguidance
    except ImportError:
        raise TrigraphError(
            "JSON schemas, grammars and regular expressions need llguidance: pip install 'trigraph[grammar]'"
        ) from None
    return llguidance
