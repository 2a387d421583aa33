"""The library `llguidance`, which parses constraints, and the work that it may do for one of them."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from trigraph.models.errors import TrigraphError

if TYPE_CHECKING:
    from llguidance import LLParserLimits


def library() -> ModuleType:
    """The module. Raises TrigraphError when it is not installed."""
    try:
        import llguidance
    except ImportError:
        raise TrigraphError(
            "JSON schemas, grammars and regular expressions need llguidance: pip install 'trigraph[grammar]'"
        ) from None
    return llguidance


@cache
def limits() -> LLParserLimits:
    """What one call may take: some 10 ms for a vocabulary of 250,000 tokens. Schemas of real tools take a tenth."""
    found: LLParserLimits = library().LLParserLimits(
        max_items_in_row=1000,
        step_max_items=10_000,
        step_lexer_fuel=100_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )
    return found


def compile_error(grammar: str) -> str | None:
    """Why a grammar, as llguidance writes it, cannot be used; None when it can."""
    failed, messages = library().LLMatcher.validate_grammar_with_warnings(grammar, limits=limits())
    return plain(messages[0]) if failed else None


def plain(message: str) -> str:
    """An error of the library as one line, without the grammar that it quotes: that may be ours."""
    first = message.split("<state>")[0].split("<non-verbose/>")[0].split("\n   1 | ")[0]
    return " ".join(first.split())
