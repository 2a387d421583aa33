"""The form that a reply must have after its thought, as a grammar: an answer of a form, or calls of tools.

The two families of calls are those of `text.reply_parser`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trigraph.models.errors import quote
from trigraph.runtime.sampling.constraint import Constraint
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.text.reply_parser import ReplyFormat
from trigraph.runtime.text.tool_arguments import types_of

_TEXT_VALUE = 'text[suffix="\\n</parameter>\\n"]: /(.|\\n)*/\n'
_PLAIN_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True)
class ReplyForm(Constraint):
    """A grammar that others are parts of, as llguidance writes it."""

    text: str
    noun = "form of the reply"

    def grammar(self) -> str:
        """See Constraint."""
        return self.text


@dataclass(frozen=True)
class ToolChoice:
    """Which calls a reply may and must have."""

    tools: Sequence[Mapping[str, Any]] = ()
    """Those that may be called, in OpenAI's form."""
    required: bool = False
    named: str | None = None
    """The one that must be called."""
    parallel: bool = True

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
    if not forced and answer is None:
        return None
    if forced and format.calls is None:
        raise ApiError("tool_choice asks for a call, and the model's chat template has none; leave it out")
    if format.calls is None or not functions:
        return answer
    rules = _calls(format.calls, functions, repeated=choice.parallel and choice.named is None)
    if answer is None or forced:
        return ReplyForm(json.dumps({"grammars": [{"lark_grammar": f"start: calls\n{rules}"}]}))
    either = {"lark_grammar": f"start: calls | @answer\n{rules}"}
    return ReplyForm(json.dumps({"grammars": [either, {**_grammar(answer), "name": "answer"}]}))


def _grammar(constraint: Constraint) -> dict[str, Any]:
    text = constraint.grammar()
    if not text.startswith("{"):
        return {"lark_grammar": text}
    found: dict[str, Any] = json.loads(text)["grammars"][0]
    return found


def _calls(family: str, functions: Sequence[Mapping[str, Any]], *, repeated: bool) -> str:
    """Rules of which `calls` is one call, or several."""
    rules = 'calls: call ("\\n" call)*\n' if repeated else "calls: call\n"
    if family == "json":
        return rules + _json_call(functions)
    names = " | ".join(f"function_{i}" for i in range(len(functions)))
    rules += f'call: "<tool_call>\\n" ({names}) "</function>\\n</tool_call>"\n' + _TEXT_VALUE
    return rules + "".join(_xml_function(i, function) for i, function in enumerate(functions))


def _json_call(functions: Sequence[Mapping[str, Any]]) -> str:
    options = []
    for function in functions:
        parameters = {"type": "object", **(function.get("parameters") or {})}
        properties = {"name": {"const": function["name"]}, "arguments": parameters}
        definitions = {key: parameters.pop(key) for key in ("$defs", "definitions") if key in parameters}
        options.append(
            {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
            | definitions
        )
    schema: dict[str, Any] = {"x-guidance": _PLAIN_JSON, "anyOf": options}
    if len(options) == 1:
        schema = {"x-guidance": _PLAIN_JSON, **options[0]}
    return f'call: "<tool_call>\\n" object "\\n</tool_call>"\nobject: %json {json.dumps(schema)}\n'


def _xml_function(number: int, function: Mapping[str, Any]) -> str:
    """A call of one function: its parameters in the order of the schema, and optional ones that are not required."""
    schema = function.get("parameters") or {}
    properties = schema.get("properties")
    required = schema.get("required")
    parts, rules = [], ""
    for i, (name, value) in enumerate(properties.items() if isinstance(properties, dict) else ()):
        rule = f"parameter_{number}_{i}"
        parts.append(rule if isinstance(required, list) and name in required else f"{rule}?")
        opened = _literal(f"<parameter={name}>\n")
        rules += f"{rule}: {opened} {_value(name, value, schema)}\n"
    opened = _literal(f"<function={function['name']}>\n")
    return f"function_{number}: {opened} {' '.join(parts)}\n{rules}"


def _value(name: str, value: Any, schema: Mapping[str, Any]) -> str:
    """The text of a parameter's value and what ends it."""
    end = _literal("\n</parameter>\n")
    types = types_of(name, schema)
    values = value.get("enum") if isinstance(value, dict) else None
    if isinstance(values, list) and values and all(isinstance(each, str) for each in values):
        return f"({' | '.join(map(_literal, values))}) {end}"
    if not types or "string" in types or not isinstance(value, dict):
        return "text"
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return f"%json {json.dumps({'x-guidance': _PLAIN_JSON, **value, **definitions})} {end}"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
