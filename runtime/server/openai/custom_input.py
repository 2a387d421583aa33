"""The input of a custom tool, out of the arguments of a call as they are written."""

from __future__ import annotations

import json
import re

from trigraph.runtime.text.json_text import HIGH, LOW, whole_characters

_HEAD = re.compile(r'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*"')
# As many characters of a JSON string as are whole: the half of a pair waits for what follows.
_WHOLE = re.compile(
    rf'(?:[^"\\]|\\[^u]|{HIGH}{LOW}|{HIGH}(?=[^\\]|\\[^u]|\\u(?:[^dD]|[dD][^c-fC-F]))|(?!{HIGH})\\u[0-9a-fA-F]{{4}})*+'
)


class CustomInput:
    """Takes the JSON text of the arguments in pieces, of which the first string is the input."""

    def __init__(self) -> None:
        self._json = ""
        self._place = 0

    def push(self, text: str) -> str:
        """What more of the arguments adds to the input."""
        self._json += text
        if not self._place:
            if (head := _HEAD.match(self._json)) is None:
                return ""
            self._place = head.end()
        whole = _WHOLE.match(self._json, self._place)
        start, self._place = self._place, self._place if whole is None else whole.end()
        return _unescaped(self._json[start : self._place])

    def finish(self) -> str:
        """The input of arguments that have no string: the value itself, as JSON."""
        if self._place:
            return ""
        try:
            value = json.loads(whole_characters(self._json))
        except (ValueError, RecursionError):
            return ""
        if isinstance(value, dict):
            value = next(iter(value.values()), "")
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """The input of whole arguments, or of their beginning."""
    reader = CustomInput()
    return reader.push(arguments) + reader.finish()


def _unescaped(text: str) -> str:
    unescaped: str = json.loads(f'"{whole_characters(text)}"', strict=False)
    return unescaped
