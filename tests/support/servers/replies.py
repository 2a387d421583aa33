"""Tools, and a call of one in both families."""

from __future__ import annotations

from typing import Any

from trigraph.runtime.text.reply_parser import ReplyFormat

XML, JSON, PLAIN = ReplyFormat(True, "xml"), ReplyFormat(True, "json"), ReplyFormat()
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "wind": {"type": "number"},
                    "metric": {"type": "boolean"},
                    "where": {"$ref": "#/$defs/Place"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
                "$defs": {"Place": {"type": "object"}},
            },
        },
    },
    {"name": "now"},
]
WEATHER = "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"
WEATHER_JSON = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
