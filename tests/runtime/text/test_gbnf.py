"""Grammars in GBNF: what they describe, compared with llama.cpp, and what errors say."""

from __future__ import annotations

import random

import pytest

from support.fakes.engine import engine_of, scripted
from support.oracles.llama_grammar import llama_accepts
from support.texts.constraints import accepts
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Grammar

pytest.importorskip("llguidance", reason="llguidance is not installed: no constraints")

ENGINE, _ = engine_of(scripted(b"abc", 1))
JSON = r"""
# an object alone
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= ([ \t\n] ws)?
"""
# A grammar, texts that it describes, and texts that it does not.
CASES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ('root ::= ("a"+)?', ("", "a", "aaa"), ("b", "ab")),
    ("root ::= ([0-9]+)?", ("", "7", "123"), ("a", "1a")),
    ("root ::= ([a-z]{2})+", ("ab", "abcd"), ("", "a", "abc")),
    ('root ::= ("a"{1,3}){2,4}', ("aa", "a" * 12), ("a", "a" * 13)),
    ('root ::= "a"{2}', ("aa",), ("a", "aaa")),
    ('root ::= "a"{2,}', ("aa", "aaaa"), ("a",)),
    ('root ::= "a"{0,2} "b"', ("b", "aab"), ("aaab",)),
    ('root ::= "a"{ 1 , 3 }', ("a", "aaa"), ("", "aaaa")),
    ('root ::= "a"{2}{2}', ("aaaa",), ("aa", "aaa")),
    (r'root ::= "\U0001F600"', ("😀",), ("", "a")),
    (r"root ::= [\U0001F600-\U0001F64F]", ("😀", "🙏"), ("🚀",)),
    (r'root ::= "\u00e9\x41"', ("éA",), ("eA",)),
    (r"root ::= [\[\]\-]", ("[", "]", "-"), ("\\", "a")),
    ("root ::= [a-]+", ("a-",), ("b",)),
    ("root ::= [-a]+", ("-a",), ("b",)),
    ("root ::= [^a]", ("b", "\n", "é"), ("a", "bb")),
    ("root ::= [/]+", ("//",), ("\\",)),
    ("root ::= . .", ("a\n", "éé"), ("a", "abc")),
    (r'root ::= "\"\\\n\r\t"', ('"\\\n\r\t',), ('"',)),
    ('root ::= start\nstart ::= "a"', ("a",), ("b", "")),
    ('root ::= "a" root | "b"', ("b", "aab"), ("a", "ba")),
    ('root ::= ("a" root)?', ("", "aaa"), ("b",)),
    ('root ::= "a" root | ("b" root | "c")', ("abac", "c"), ("ab",)),
    ('root ::= x\nx ::= "(" x ")" | ""', ("", "(())"), ("(", "())")),
    ('root ::= "(" root ")" root | "-"', ("-", "(-)-", "((-)-)-"), ("()", "-(")),
    ('root ::= a-b\na-b ::= A-B\nA-B ::= "x"', ("x",), ("",)),
    ('root ::= "a" # a comment\n\n# another\nb ::= "b"', ("a",), ("b",)),
    ('root ::= | "a"', ("", "a"), ("b",)),
    ('root ::= ("a" | )', ("", "a"), ("b",)),
    ('root ::= ("a"\n| "b")\n', ("a", "b"), ("ab",)),
    ('root ::=\n  "a" "b"', ("ab",), ("a",)),
    ('root ::= "a" b\nb ::= ""', ("a",), ("", "ab")),
    ('root ::= "a" | "ab" | "abc" "d"', ("a", "ab", "abcd"), ("abc",)),
    ('root ::= ("a" | "ab") ("c" | "bcd")', ("ac", "abc", "abcd", "abbcd"), ("ab", "abb")),
    (
        JSON,
        ('{"a": [1, -2.5e3, {"b": "\\u00e9"}], "c": null }', "{}", '{ "x" : "y\\"" }'),
        ('{"a": 01}', "[1]", '{"a": "\n"}', '{"a"}'),
    ),
)


@pytest.mark.parametrize(("grammar", "texts", "others"), CASES, ids=lambda value: str(value)[:40])
def test_what_a_grammar_describes(grammar: str, texts: tuple[str, ...], others: tuple[str, ...]) -> None:
    constraint = Grammar(grammar)
    for text in texts + others:
        assert llama_accepts(grammar, text) == (text in texts), text
        assert accepts(ENGINE.model.guide(constraint), text) == (text in texts), text


def test_an_option_may_begin_the_next_line() -> None:
    """llama.cpp takes this in groups alone."""
    for text, kept in (("a", True), ("b", True), ("c", False)):
        assert accepts(ENGINE.model.guide(Grammar('root ::= "a"\n  | "b"\n')), text) == kept


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ("", "it has no rule root"),
        ('answer ::= "a"', "it has no rule root"),
        ("root ::= ", "line 1, column 1: the rule root is empty"),
        ('root ::=\nb ::= "x"', "line 1, column 1: the rule root is empty"),
        ('root ::= b\n\nb ::= # nothing\nc ::= "x"', "line 3, column 1: the rule b is empty"),
        ('root = "a"', "line 1, column 6: expected ::="),
        ('root ::= "a"\n  b', "line 2, column 4: expected ::="),
        ('root ::= "a', "line 1, column 10: this text has no end"),
        ('root ::= "a"\nb ::= [a', "line 2, column 7: this class has no end"),
        ('root ::= ("a"\n', "line 1, column 10: this group has no end"),
        ('root ::= "a")', r"line 1, column 13: unexpected '\)'"),
        ("root ::= *", r"line 1, column 1: the rule root is empty|unexpected"),
        ('root ::= "a"\n       | b', "line 2, column 10: there is no rule 'b'"),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 1: the rule 'root' is there already"),
        (r'root ::= "\q"', r"line 1, column 11: there is no escape '\\\\q'"),
        (r'root ::= "\uD800"', "line 1, column 11: .* is no character"),
        (r'root ::= "\U00110000"', "line 1, column 11: .* is no character"),
        ("root ::= [z-a]", "line 1, column 10: the range 'z-a' is empty"),
        ("root ::= []", "line 1, column 10: this class has no characters"),
        ('root ::= "a"{,3}', "line 1, column 13: a repetition is written"),
        ('root ::= "a"{3,1}', "line 1, column 13: the repetition .* has no sense"),
        ('root ::= "a"{2001}', "line 1, column 13: the repetition .* asks for more than 2,000"),
        ("root ::= !<think>", "line 1, column 10: a token that must not come"),
        ("root ::= <think", "line 1, column 10: a token is written <name> or <\\[id\\]>"),
        ("root ::= " + "(" * 200, "line 1, column 110: groups are nested more than 100 deep"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_errors_say_where(grammar: str, text: str) -> None:
    with pytest.raises(TrigraphError, match=f"the grammar cannot be used: .*{text}"):
        Grammar(grammar)


def test_tokens_of_the_vocabulary() -> None:
    guide = ENGINE.model.guide(Grammar('root ::= <[257]> "a" | <[98]>'))
    assert guide.allows(257) and guide.allows(98) and not guide.allows(97)
    guide.advance(257)
    assert guide.allows(97) and not guide.allows(98)


def test_long_grammars_stay_small() -> None:
    """Rules that stand in many places are not written out in each of them for ever."""
    doubled = "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(30)) + '\nr30 ::= "a"'
    constraint = Grammar('root ::= "b" | "c" r24\n' + doubled)
    assert len(constraint.grammar()) < 100_000
    assert accepts(ENGINE.model.guide(constraint), "c" + "a" * 64)


def test_chains_of_rules() -> None:
    grammar = "root ::= r0\n" + "\n".join(f'r{i} ::= ("a" r{i + 1})?' for i in range(300)) + '\nr300 ::= "b"'
    guide = Grammar(grammar)
    assert accepts(ENGINE.model.guide(guide), "a" * 300 + "b")
    assert not accepts(ENGINE.model.guide(guide), "a" * 300)


def _node(rng: random.Random, depth: int, names: list[str]) -> str:
    """Part of a random grammar. Rules refer to others behind a character: llama.cpp takes no left recursion."""
    kind = rng.random()
    if not depth or kind < 0.3:
        return rng.choice(['"a"', '"b"', '"ab"', "[ab]", "[^a]", '"c"', '""', ".", '"ba"'])
    if kind < 0.45:
        before, after = rng.choice(['"a"', '"b"', "[bc]"]), rng.choice(["", '"c"', "[ab]"])
        return f"({before} {rng.choice(names)} {after})"
    if kind < 0.8:
        joint = " " if kind < 0.65 else " | "
        return f"({joint.join(_node(rng, depth - 1, names) for _ in range(rng.randint(1, 3)))})"
    times = rng.choice(["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}"])
    before = rng.choice(['"c"', "[ab]", '"a"'])
    return f"({before} {_node(rng, depth - 1, names)}){times}"


def _grammar(rng: random.Random) -> str:
    names = ["root", "x", "y"][: rng.randint(1, 3)]
    options = {name: [_node(rng, 2, names) for _ in range(rng.randint(1, 3))] for name in names}
    return "\n".join(f"{name} ::= {' | '.join(parts)}" for name, parts in options.items())


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_random_grammars_against_llama_cpp(seed: int) -> None:
    """Texts that llama.cpp refuses are refused; most that it takes are taken.

    Of a grammar that is no regular expression a few are not: llguidance ends a lexeme as late as it can.
    """
    rng = random.Random(seed)
    taken = missed = 0
    for _ in range(300 if seed else 40):
        grammar = _grammar(rng)
        texts = ["".join(rng.choice("aabbc") for _ in range(rng.randint(0, 7))) for _ in range(12)]
        expected = [llama_accepts(grammar, text) for text in texts]
        if not any(expected):  # it may describe no text at all
            continue
        constraint = Grammar(grammar)
        for text, kept in zip(texts, expected, strict=True):
            found = accepts(ENGINE.model.guide(constraint), text)
            assert kept or not found, (grammar, text)
            taken, missed = taken + bool(kept), missed + (bool(kept) and not found)
    assert taken > 50
    assert missed <= 0.1 * taken
