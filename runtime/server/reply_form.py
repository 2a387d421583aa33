"""The form that a reply must have after its thought, as a grammar: an answer of a form, or calls of tools.

The two families of calls are those of `text.reply_parser`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trigraph.models.errors import quote
from trigraph.runtime.sampling.constraint import UNFORCED, Constraint
from trigraph.runtime.sampling.json_schema import Enforced, Note, enforced
from trigraph.runtime.sampling.semaphore import BusyError
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.parameter_text import LAST, MOST_IN_ALL, NEXT, ParameterText, literal
from trigraph.runtime.text.reply_parser import ReplyFormat
from trigraph.runtime.text.tool_arguments import Arguments, types_of

# Around calls that a reply may have, text that the parser takes for nothing else.
_FREE = """TEXT: /(?s:.*)/ & ~/(?s:.*)(<tool_call>|<function=)(?s:.*)/
LEAD: TEXT "<tool_call>"
"""
_PLAIN_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True)
class ReplyForm(Constraint):
    """A grammar that others are parts of, as llguidance writes it."""

    text: str
    notes: tuple[Note, ...] = ()
    """The keywords of tools' schemas that calls are not held to."""
    noun = "form of the reply"

    def grammar(self) -> str:
        """The grammar itself."""
        return self.text


@dataclass(frozen=True)
class ToolChoice:
    """Which calls a reply may and must have."""

    tools: Sequence[Mapping[str, Any]] = ()
    """The tools that may be called, in OpenAI's form."""
    required: bool = False
    named: str | None = None
    """The one that must be called."""
    parallel: bool = True
    strict: frozenset[str] = frozenset()
    """Names of the tools whose calls must keep to all of their schemas, called by force or not."""
    forms: Mapping[str, Constraint] = field(default_factory=dict)
    """What the only argument of some tools must be, called by force or not."""

    def functions(self) -> list[Mapping[str, Any]]:
        """The functions that a call may name. Raises ApiError when the one that must be called is not among them."""
        functions = [tool["function"] for tool in self.tools]
        if self.named is not None:
            functions = [function for function in functions if function["name"] == self.named]
        if not functions and (self.named is not None or self.required):
            wanted = "a tool" if self.named is None else f"the tool {quote(self.named)}"
            raise ApiError(f"tool_choice asks for {wanted}, and tools has none; add it", param="tool_choice")
        return functions


def reply_form(format: ReplyFormat, choice: ToolChoice, answer: Constraint | None) -> Constraint | None:
    """The form of a reply by its tool choice, and by that of its content; None where any will do."""
    functions = choice.functions()
    forced = choice.required or choice.named is not None
    strict = any(
        function["name"] in choice.strict or (function["name"] in choice.forms and format.calls == "xml")
        for function in functions
    )
    if not forced and not strict and answer is None:
        return None
    if forced and format.calls is None:
        raise ApiError("tool_choice asks for a call, and the model's chat template has none; leave it out")
    if format.calls is None or not functions:
        return answer
    calls = _Calls(format.calls, functions, choice)
    notes, rules = tuple(calls.notes), calls.rules
    repeated = choice.parallel and choice.named is None
    start = 'call ("\\n" call)*' if repeated else "call"
    if not forced and answer is None:
        start = f"TEXT | (LEAD called){'+' if repeated else ''} TEXT"
        rules += _FREE
    if calls.forms:
        rules += UNFORCED
    if forced or answer is None:
        return ReplyForm(json.dumps({"grammars": [{"lark_grammar": f"start: {start}\n{rules}"}, *calls.forms]}), notes)
    either = {"lark_grammar": f"start: {start} | @answer\n{rules}"}
    grammars = [either, {**_grammar(answer), "name": "answer"}, *calls.forms]
    return ReplyForm(json.dumps({"grammars": grammars}), (*notes, *answer.notes))


def check_strict(notes: Sequence[Note], subject: str, param: str) -> None:
    """Raises ApiError when a schema that is strict has a keyword that is not enforced."""
    if left_out := [note for note in notes if not note.annotation]:
        raise ApiError(f"{subject} is strict, and {left_out[0]}; leave out the keyword, or strict", param=param)


def _grammar(constraint: Constraint) -> dict[str, Any]:
    text = constraint.grammar()
    if not text.startswith("{"):
        return {"lark_grammar": text}
    grammar: dict[str, Any] = json.loads(text)["grammars"][0]
    return grammar


class _Calls:
    """Rules of which `call` is one call, and `called` what follows its first tag."""

    def __init__(self, family: str, functions: Sequence[Mapping[str, Any]], choice: ToolChoice) -> None:
        self.notes: list[Note] = []
        self.forms: list[dict[str, Any]] = []
        """Grammars of arguments, which the rules name."""
        self._choice = choice
        self._terminals: dict[str, str] = {}
        self._left = MOST_IN_ALL
        self._length = 0  # of what is written so far: what is too long for a form may be too long for the memory
        self.rules = 'call: "<tool_call>" called\n'
        if family == "json":
            self.rules += self._json_call(functions)
            return
        names = " | ".join(f"function_{i}" for i in range(len(functions)))
        self.rules += f'called: "\\n" ({names}) "\\n</tool_call>"\n'
        self.rules += "".join(self._xml_function(i, function) for i, function in enumerate(functions))
        self.rules += "".join(f"{name}: {terminal}\n" for terminal, name in self._terminals.items())

    def _enforced(self, function: Mapping[str, Any]) -> Enforced:
        parameters = {key: value for key, value in (function.get("parameters") or {}).items() if key not in _NAMING}
        try:
            return enforced({"type": "object", **parameters})
        except ValueError as error:
            raise _refusal(function, error) from error

    def _note(self, function: Mapping[str, Any], notes: Sequence[Note]) -> None:
        name = function["name"]
        if name in self._choice.strict:
            check_strict(notes, f"the tool {quote(name)}", "tools")
        self.notes += [note._replace(place=f"{name}{note.place}") for note in notes]

    def _json_call(self, functions: Sequence[Mapping[str, Any]]) -> str:
        options: list[dict[str, Any]] = []
        definitions, guidance = {}, dict[str, Any](_PLAIN_JSON)
        for i, function in enumerate(functions):
            parameters, more, notes = self._enforced(function)
            self._note(function, notes)
            guidance |= more
            definitions[f"tool_{i}"] = _within(parameters, f"tool_{i}")
            properties = {"name": {"const": function["name"]}, "arguments": {"$ref": f"#/$defs/tool_{i}"}}
            options.append(
                {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
            )
        schema = {"x-guidance": guidance, "anyOf": options, "$defs": definitions}
        return f'called: "\\n" object "\\n</tool_call>"\nobject: %json {json.dumps(schema)}\n'

    def _xml_function(self, number: int, function: Mapping[str, Any]) -> str:
        """A call of one function: its parameters in the order of the schema, those that are not required optional."""
        schema, guidance, notes = self._enforced(function)
        arguments, text = Arguments.of(schema), ParameterText(schema, self._left)
        within = {"tool": _within(schema, "tool")}
        rules, count = "", len(arguments.schemas)
        last = max((i for i, name in enumerate(arguments.schemas) if name in arguments.required), default=-1)
        for i, (name, value) in enumerate(arguments.schemas.items()):
            terminal: str | None
            objects: str | None
            try:
                terminal, objects = self._xml_value(name, value, text, guidance, within)
            except ValueError as error:
                raise _refusal(function, error) from error
            if (form := self._choice.forms.get(function["name"])) is not None:
                self.forms.append({**_grammar(form), "name": f"form_{number}"})
                terminal, objects = None, f"@form_{number}"
            # A value ends where another parameter, or the end of the function, shows that its closing tag is one.
            options = self._ended(terminal, objects, LAST, "") if i >= last else []
            if i + 1 < count:
                options += self._ended(terminal, objects, NEXT, f" next_{number}_{i + 1}")
            rule = f"next_{number}_{i}: {literal(name + '>' + chr(10))} ({' | '.join(options)})"
            rule += f" | next_{number}_{i + 1}\n" if name not in arguments.required and i + 1 < count else "\n"
            rules += self._counted(rule)
        self._left = text.left
        if not arguments.exact:
            notes += (Note("", "anyOf or oneOf", "is enforced for each parameter alone"),)
        bounds = [Note("", key, "is not enforced") for key in ("minProperties", "maxProperties") if key in schema]
        self._note(function, [*notes, *bounds, *dict.fromkeys(text.notes)])
        opened = literal(f"<function={function['name']}>\n")
        bodies = ['"</function>"'] * (last < 0) + [f'"<parameter=" next_{number}_0'] * (count > 0)
        return f"function_{number}: {opened} ({' | '.join(bodies)})\n{rules}"

    def _xml_value(
        self, name: str, value: Any, text: ParameterText, guidance: Mapping[str, Any], within: Mapping[str, Any]
    ) -> tuple[str | None, str | None]:
        """A parameter's value as a terminal, as JSON, or both."""
        types = types_of(value, text.root)
        if (terminal := text.terminal(name, value)) is not None:
            types &= {"object", "array"}
            if not types:
                return terminal, None
        own = _within(value, "tool") if isinstance(value, Mapping) else {}
        own = {"x-guidance": {**_PLAIN_JSON, **guidance}, **own}
        if terminal is not None:
            own["type"] = sorted(types)
        if '"$ref"' in json.dumps(own):
            own["$defs"] = within
        return terminal, f"%json {json.dumps(own)}"

    def _ended(self, terminal: str | None, objects: str | None, end: str, after: str) -> list[str]:
        """The alternatives of a value with what ends it, which is part of the terminal, and what comes then."""
        options = []
        if terminal is not None:
            if (ended := f"{terminal} {end}") not in self._terminals:
                self._terminals[self._counted(ended)] = f"VALUE_{len(self._terminals)}"
            options.append(self._terminals[ended] + after)
        if objects is not None:
            options.append(f"{objects} {end}{after}")
        return options

    def _counted(self, text: str) -> str:
        """The text. Raises TrigraphError where it and others before it are too long for a form."""
        self._length += len(text)
        ReplyForm._check_length(self._length)
        return text


_NAMING = frozenset({"$id", "$schema"})  # of the document that the parameters were


def _within(schema: Any, name: str) -> Any:
    """The schema with references for where it stands among the definitions of another one, called `name`."""
    if isinstance(schema, list):
        return [_within(part, name) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    rewritten = {key: _within(value, name) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        rewritten["$ref"] = f"#/$defs/{name}{reference[1:]}"
    return rewritten


def _refusal(function: Mapping[str, Any], reason: ValueError) -> Exception:
    if isinstance(reason, BusyError):
        return reason
    name = quote(function["name"])
    return ApiError(f"the parameters of the tool {name} cannot be used: {reason}", param="tools")
