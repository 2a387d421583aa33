"""The tools of a request as functions, which are what models call.

A custom tool is a function of one string, `input`; a tool X of a namespace N is the function `N__X`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.sampling.constraint import Constraint, Grammar, Regex
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.reply_form import ToolChoice
from trigraph.runtime.server.schema import TOOL_NAME, TOOL_NAME_RULE

INPUT = "input"
_INPUT_SCHEMA = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}
_SYNTAXES: dict[str, type[Grammar] | type[Regex]] = {"lark": Grammar, "regex": Regex}


@dataclass(frozen=True)
class Origin:
    """The tool that a function stands for."""

    name: str
    custom: bool = False
    namespace: str | None = None


@dataclass
class Tools:
    """The functions of a request, and where they come from."""

    functions: dict[str, dict[str, Any]] = field(default_factory=dict)
    """In OpenAI's form, by name."""
    origins: dict[str, Origin] = field(default_factory=dict)
    strict: set[str] = field(default_factory=set)
    """Names of those whose calls must keep to their schemas."""
    forms: dict[str, Constraint] = field(default_factory=dict)
    """What the inputs of custom tools must be, by the function's name."""
    ignored: list[str] = field(default_factory=list)
    """Sentences about what the model is not told of."""

    @classmethod
    def of(cls, tools: Iterable[Mapping[str, Any]]) -> Tools:
        """The tools of a request, in the form of the Responses API. Raises ApiError for a name or grammar of no use."""
        made = cls()
        made._add(tools, None)
        return made

    def choice(self, wanted: str | Mapping[str, Any] | None, *, parallel: bool) -> ToolChoice:
        """The functions that may be called, and whether one must be. Raises ApiError for an unknown choice."""
        if wanted == "none":
            return ToolChoice()
        names, required, named = [*self.functions], wanted == "required", None
        if isinstance(wanted, Mapping):
            kind = wanted.get("type")
            if kind in ("function", "custom"):
                named = self._named(wanted)
            elif kind == "allowed_tools":
                allowed = {self._named(tool) for tool in _objects(wanted, "tool_choice")}
                names = [name for name in names if name in allowed]
                required = wanted.get("mode") == "required"
            else:
                self.ignored.append(f"tool_choice of type {quote(kind)} is ignored")
        elif wanted not in (None, "auto", "required"):
            raise ApiError(
                f"tool_choice is {quote(wanted)}; it must be auto, none, required or a function", param="tool_choice"
            )
        functions = [self.functions[name] for name in names]
        return ToolChoice(functions, required, named, parallel, frozenset(self.strict), self.forms)

    def notes(self, family: str | None) -> list[str]:
        """What is ignored where a reply's calls are of this family; only values between tags can have a grammar."""
        forms = [] if family == "xml" else self.forms
        return [*self.ignored, *(f"the grammar of the tool {quote(name)} is not enforced" for name in forms)]

    def _add(self, tools: Iterable[Mapping[str, Any]], namespace: str | None) -> None:
        for tool in tools:
            kind, name, text = tool.get("type"), tool.get("name"), tool.get("description")
            if kind == "namespace" and namespace is None and isinstance(name, str):
                within = _objects(tool, "tools")
                if within and isinstance(text, str):  # the first tells of all
                    within[0] = {**within[0], "description": f"{text}\n\n{within[0].get('description') or ''}".strip()}
                self._add(within, name)
            elif kind in ("function", "custom") and isinstance(name, str) and name:
                self._add_function(tool, Origin(name, kind == "custom", namespace))
            else:
                sentence = f"tools of type {quote(kind)} are ignored"
                if sentence not in self.ignored:
                    self.ignored.append(sentence)

    def _add_function(self, tool: Mapping[str, Any], origin: Origin) -> None:
        name = function_name(origin.name, origin.namespace)
        if not TOOL_NAME.fullmatch(name):
            raise ApiError(f"tools has {quote(name)}; {TOOL_NAME_RULE}", param="tools")
        if name in self.functions:
            self.ignored.append(f"the tool {quote(name)} is given twice; the first is used")
            return
        description, parameters = tool.get("description"), tool.get("parameters")
        if origin.custom:
            parameters = _INPUT_SCHEMA
            if (grammar := _grammar(tool)) is not None:
                syntax, definition = grammar
                self.forms[name] = _form(name, syntax, definition)
                description = f"{description or ''}\n\nThe input follows this {syntax} grammar:\n\n{definition}".strip()
        elif tool.get("strict") is True:
            self.strict.add(name)
        self.functions[name] = function_tool(name, description, parameters)
        self.origins[name] = origin

    def _named(self, tool: Mapping[str, Any]) -> str:
        """The function of a tool that is named, with its namespace or without."""
        name, namespace = str(tool.get("name")), tool.get("namespace")
        full = function_name(name, namespace if isinstance(namespace, str) else None)
        same = [function for function, origin in self.origins.items() if origin.name == name]
        return same[0] if full not in self.functions and len(same) == 1 else full


def function_name(name: str, namespace: str | None) -> str:
    """What the model calls a tool."""
    return f"{namespace}__{name}" if namespace else name


def function_tool(name: str, description: object, parameters: object) -> dict[str, Any]:
    """A function as chat templates take it: one text for one tool, whatever API it came by."""
    function: dict[str, Any] = {"name": name}
    if isinstance(description, str):
        function["description"] = description
    if isinstance(parameters, Mapping):
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def call_of(name: str, namespace: str | None, text: str) -> dict[str, Any]:
    """A call of a custom tool in a history, as a function's."""
    return {"name": function_name(name, namespace), "arguments": {INPUT: text}}


def _objects(tool: Mapping[str, Any], param: str) -> list[Mapping[str, Any]]:
    """The tools that one of a request lists. Raises ApiError for what is no list."""
    tools = tool.get("tools") or []
    if not isinstance(tools, list):
        raise ApiError(f"the tools within {param} are {quote(tools)}; give a list of tools", param=param)
    return [one for one in tools if isinstance(one, Mapping)]


def _grammar(tool: Mapping[str, Any]) -> tuple[str, str] | None:
    """Syntax and text of a custom tool's grammar; chat completions have them one object deeper."""
    format = tool.get("format")
    if not isinstance(format, Mapping) or format.get("type") != "grammar":
        return None
    given = format.get("grammar", format)
    syntax, definition = (given.get("syntax"), given.get("definition")) if isinstance(given, Mapping) else (None, None)
    if syntax not in [*_SYNTAXES] or not isinstance(definition, str):
        raise ApiError(
            f"the tool {quote(tool.get('name'))} has a grammar with the syntax {quote(syntax)}; give lark or regex, "
            "and a definition",
            param="tools",
        )
    return syntax, definition


def _form(name: str, syntax: str, definition: str) -> Constraint:
    try:
        return _SYNTAXES[syntax](definition)
    except TrigraphError as error:
        raise ApiError(f"the tool {quote(name)}: {error}", param="tools") from error
