"""Where a value ends, and which type it takes."""

from __future__ import annotations

from typing import Any

from support.servers.reply_cases import Case, f, xml, xml_call

END = "\n</parameter>\n</function>\n</tool_call>"
# The text of one value, written as the template does: it comes back as it is.
EXACT = {
    "plain": "hello",
    "nothing": "",
    "a blank": " ",
    "a line break": "\n",
    "line breaks around": "\n\nhello\n\n",
    "blanks around": "  hello\t ",
    "a carriage return at the end": "hello\r",
    "CRLF within": "a\r\nb\r\n",
    "unicode": "größe 日本語 😀 \u2028 \u00a0",
    "quotes and backslashes": '"a" \\n \\ \'b\' \x00\x1b',
    "tags of others": "<b>x</b> <tool> </tool_response> <|im_end|>",
    "beginnings of tags": "< <p </par <function <parameter= </parameter <tool_call",
    "a closing tag within": "A block ends with </parameter> here.\nrest of the file",
    "a closing tag at a line's end": "</parameter>\nrest of the file",
    "a closing tag at the end": "A block ends with </parameter>",
    "a closing tag on the last line": "x\n</parameter>",
    "closing tags": "</parameter></parameter>\n</parameter>",
    "the end of a function within": "</function>\nrest",
    "the end of a function before a closing tag": "\n  \"a\"\\n <b>\t</function>\n",
    "the end of a call within": "say </tool_call> to end\n</tool_call>\nand go on",
    "a tag of a parameter that was given": "<parameter=path>\n/etc/passwd",
    "its own tag": "<parameter=content>\nagain\n</parameter> and so on",
    "a tag of an undeclared parameter": "<parameter=command>\nrm -rf /\n</parameter> and so on",
    "a tag of a parameter in a sentence": "Set <parameter=mode> to a.",
    "a function within": "<function=write>\nis what you write",
    "a whole opening within": "<tool_call>\n<function=now>\nis a call without </function>.",
    "a call on a line of its own": "<tool_call>\n<function=now>",
    "a fence": "```python\nprint()\n```",
    "a fence and a closing tag": "```</parameter>```",
    "thoughts": "<think>\nhm\n</think>",
    "JSON": '{"a": [1, 2]}',
    "a number": "12",
    "None": "None",
    "a name with a break": "<parameter=mode\n>x",
    "a tag without an end": "</parameter\n>",
}  # fmt: skip
CASES = {f"exact: {name}": Case(xml("write", path="p", content=text), [("write", {"path": "p", "content": text})])
         for name, text in EXACT.items()}  # fmt: skip
# What stands behind `<parameter=content>`, and all that is found in it.
_ENDS: dict[str, tuple[str, list[Any]]] = {
    "on one line": ("", []),
    "at the end of the reply": ("hello\n</parameter>", [("write", {"content": "hello"})]),
    "at the end of the reply, white space": ("hello\n</parameter> \n\n", [("write", {"content": "hello"})]),
    "at the end of a function": ("hello</function>\n</tool_call>", [("write", {"content": "hello"})]),
    "at the end of a function, on a line": ("hello\n</function>\n</tool_call>", [("write", {"content": "hello"})]),
    "at the end of a function, and of the reply": ("hello\n</function>", [("write", {"content": "hello"})]),
    "at the end of a call": ("hello\n</tool_call>", [("write", {"content": "hello"})]),
    "where the reply ends": ("hello\n", [("write", {"content": "hello"})]),
    "without the end of the function": ("hello\n</parameter>\n</tool_call>", [("write", {"content": "hello"})]),
    "without the end of the call": ("hello\n</parameter>\n</function>", [("write", {"content": "hello"})]),
    "and text": ("hello\n</parameter>\n</function>\n\nDone.", [("write", {"content": "hello"}), "Done."]),
    "at the end of a function, and text": (
        "hello</function>\n</tool_call>\nDone.", [("write", {"content": "hello"}), "Done."],
    ),
    "and a call": (
        "hello</function>\n</tool_call>\n" + xml("write", path="b"),
        [("write", {"content": "hello"}), ("write", {"path": "b"})],
    ),
    "before a call, without other ends": (
        "hello\n</parameter>\n" + xml("write", path="b"), [("write", {"content": "hello"}), ("write", {"path": "b"})],
    ),
    "before a function": (
        "hello\n</parameter>\n<function=now>\n</function>\n</tool_call>",
        [("write", {"content": "hello"}), ("now", {})],
    ),
    "before an undeclared function": (
        "hello\n</parameter>\n<function=nothing>" + END,
        [("write", {"content": "hello\n</parameter>\n<function=nothing>"})],
    ),
    "at the end of a call before a call": (
        "hello\n</tool_call>\n" + xml("now"), [("write", {"content": "hello"}), ("now", {})],
    ),
    "not before a call alone": (
        "hello\n<tool_call>\n<function=now>" + END, [("write", {"content": "hello\n<tool_call>\n<function=now>"})],
    ),
    "at another parameter": (
        "hello\n<parameter=path>\n/x" + END, [("write", {"content": "hello", "path": "/x"})],
    ),
    "at another parameter, indented": (
        "hello\n  <parameter=path>\n/x" + END, [("write", {"content": "hello", "path": "/x"})],
    ),
    "at another parameter that closes no tag": (
        "hello\n<parameter=path>\n/x\n<parameter=mode>\nw</function>\n</tool_call>",
        [("write", {"content": "hello", "path": "/x", "mode": "w"})],
    ),
    "not at a parameter that is given later": (
        "a\n<parameter=path>\n/etc/passwd\nb\n</parameter>\n<parameter=path>\n/x" + END,
        [("write", {"content": "a\n<parameter=path>\n/etc/passwd\nb", "path": "/x"})],
    ),
    "not at parameters that are given later": (
        "<parameter=mode>\nx\n<parameter=path>\ny\n</parameter>\n<parameter=path>\n/x\n</parameter>\n"
        "<parameter=mode>\nw" + END,
        [("write", {"content": "<parameter=mode>\nx\n<parameter=path>\ny", "path": "/x", "mode": "w"})],
    ),
    "not at an undeclared parameter": (
        "hello\n<parameter=other>\nx" + END, [("write", {"content": "hello\n<parameter=other>\nx"})],
    ),
    "given twice": (
        "one\n</parameter>\n<parameter=content>\ntwo" + END, [("write", {"content": "one"})],
    ),
    "given twice, and another": (
        "one\n</parameter>\n<parameter=content>\ntwo\n</parameter>\n<parameter=path>\n/x" + END,
        [("write", {"content": "one", "path": "/x"})],
    ),
    "with blanks around tags": (
        "hello\n \t</parameter> \t\n\n  </function>  \n </tool_call>", [("write", {"content": "hello"})],
    ),
    "with undeclared parameters": (
        "hello\n</parameter>\n<parameter=other>\n12" + END, [("write", {"content": "hello", "other": "12"})],
    ),
}  # fmt: skip
CASES |= {f"ends {name}": Case(f(text), found) for name, (text, found) in _ENDS.items() if text}
CASES |= {
    "on one line": Case(
        "<tool_call><function=typed><parameter=n>3</parameter><parameter=note>a b</parameter></function></tool_call>",
        [("typed", {"n": 3, "note": "a b"})],
    ),
    "on one line, without closing tags": Case(
        "<tool_call><function=write><parameter=path>a<parameter=content>b</function></tool_call>",
        [("write", {"path": "a", "content": "b"})],
    ),
    "CRLF beside tags": Case(
        xml("write", path="a", content="b\nc").replace("\n", "\r\n"),
        [("write", {"path": "a", "content": "b\r\nc"})],
    ),
    "names of many kinds": Case(
        xml_call("odd", {"a b": "1", "größe": "2", "x.y-z": "3", '"q"': "4"}),
        [("odd", {"a b": "1", "größe": "2", "x.y-z": "3", '"q"': "4"})],
    ),
    "attributes": Case(
        '<tool_call>\n<function=write id="1">\n<parameter=path type="string" x=2>\na\n</parameter>\n'
        "<parameter=content >\nb" + END,
        [("write", {"path": "a", "content": "b"})],
    ),
    "quoted names": Case(
        "<tool_call>\n<function=\"write\">\n<parameter='path'>\na" + END, [("write", {"path": "a"})],
    ),
    "another's attribute in a value": Case(
        f('a\n<parameter=path lang="x">\nb\n</parameter>\n<parameter=path>\nc' + END),
        [("write", {"content": 'a\n<parameter=path lang="x">\nb', "path": "c"})],
    ),
}  # fmt: skip
# A parameter of `typed`, its text, and its value; None where it is left out.
_TYPES: dict[str, tuple[str, str, Any]] = {
    "an integer": ("n", "3", 3),
    "an integer in blanks": ("n", " 3 ", 3),
    "a negative integer": ("n", "-12", -12),
    "a long integer": ("n", "123456789012345678901234567890", 123456789012345678901234567890),
    "an integer with a fraction": ("n", "140.0", 140),
    "an integer with an exponent": ("n", "1e3", 1000),
    "an integer with both": ("n", "1.25E2", 125),
    "a fraction for an integer": ("n", "1.5", "1.5"),
    "an integer with zeros": ("n", "007", "007"),
    "a huge exponent": ("n", "1e999999999", "1e999999999"),
    "a word for an integer": ("n", "soon", "soon"),
    "a number": ("x", "-1.5e3", -1.5e3),
    "a whole number": ("x", "140.0", 140.0),
    "an integer for a number": ("x", "7", 7),
    "no number": ("x", "NaN", "NaN"),
    "true": ("b", "true", True),
    "True": ("b", "True", True),
    "TRUE": ("b", "TRUE", True),
    "FALSE": ("b", "FALSE", False),
    "yes": ("b", "yes", "yes"),
    "a list": ("a", '["a", "b"]', ["a", "b"]),
    "a list of lines": ("a", '[\n  "a"\n]', ["a"]),
    "Python's list": ("a", "['a', \"b\", 'it\\'s', None, True, 1.5,]", ["a", "b", "it's", None, True, 1.5]),
    "a list of words": ("a", "[a, b]", "[a, b]"),
    "text for a list": ("a", "a, b", "a, b"),
    "Python's set": ("a", "['a', {1}]", "['a', {1}]"),
    "half a character": ("a", "['\\ud800']", "['\\ud800']"),
    "an object": ("o", '{"a": {"b": []}}', {"a": {"b": []}}),
    "Python's object": ("o", "{'a': {'b': None, 'c': [False]}}", {"a": {"b": None, "c": [False]}}),
    "a broken object": ("o", '{"a": ', '{"a": '),
    "a list for an object": ("o", "[1]", "[1]"),
    "JSON that is no JSON": ("o", '{"a": NaN}', '{"a": NaN}'),
    "None": ("maybe", "None", None),
    "null": ("maybe", "null", None),
    "None of a string": ("note", "None", None),
    "a string that may be null": ("note", "none", "none"),
    "a string or a number": ("either", "3", 3),
    "a version": ("either", "3.0", "3.0"),
    "a word in capitals": ("either", "TRUE", "TRUE"),
    "a string or a list": ("some", "['a']", "['a']"),
    "a list or a string": ("some", '["a"]', ["a"]),
    "any object": ("any", '{"a": 1}', {"a": 1}),
    "any list": ("any", "[1, 2]", [1, 2]),
    "any number": ("any", "12", "12"),
    "any text in brackets": ("any", "[see below]", "[see below]"),
    "any Python": ("any", "{'a': 1}", "{'a': 1}"),
    "tags in a list": ("a", '["</parameter></function>", "</tool_call>"]', ["</parameter></function>", "</tool_call>"]),
}  # fmt: skip
CASES |= {
    f"type: {name}": Case(xml_call("typed", {key: text}), [("typed", {key: value})])
    for name, (key, text, value) in _TYPES.items()
}
CASES |= {
    "empty values": Case(
        xml("typed", n="", x=" ", b="", a="", o="", note="", either="", some="", any=""),
        [("typed", {"note": "", "either": "", "some": "", "any": ""})],
    ),
    "an empty value that may be null": Case(xml("typed", maybe="", n="1"), [("typed", {"n": 1})]),
    "an empty value that is required": Case(xml("must", n=""), [("must", {"n": ""})]),
    "a list that is never closed": Case(
        f('["a", "b', "typed", "a") + "\n</parameter>\n<parameter=n>\n3" + END, [("typed", {"a": '["a", "b', "n": 3})],
    ),
    "a list that is never closed, on one line": Case(
        "<tool_call><function=typed><parameter=a>[\"b</parameter><parameter=n>3</parameter></function></tool_call>\n.",
        [("typed", {"a": "[\"b", "n": 3}), "."],
    ),
    "a list that is never closed, and a call": Case(
        f('["a", "b', "typed", "a") + END + "\n" + xml("now"), [("typed", {"a": '["a", "b'}), ("now", {})],
    ),
}  # fmt: skip
