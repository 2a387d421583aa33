"""What is a call, and what is text."""

from __future__ import annotations

from support.servers.replies import PLAIN, XML
from support.servers.reply_cases import Case, Thought, xml
from trigraph.runtime.text.reply_parser import ReplyFormat

WRITE = xml("write", path="a", content="b")
WRITTEN = ("write", {"path": "a", "content": "b"})
NOW = xml("now")
EXAMPLE = (
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>"
)
# Text that is no call: it comes back to the byte.
_PROSE = {
    "nothing": "",
    "a sentence": "yes < no > maybe\n",
    "blanks alone": " \n\t",
    "a tag in a sentence": "Use `<function=write>` to write.",
    "a tag in a sentence, with parameters": "Use `<function=write><parameter=path>a</parameter></function>`.",
    "a call in a sentence": f"Write `{WRITE.replace(chr(10), '')}` to write.",
    "a tag on a line": "<function=write>\nis what you write.",
    "a tag alone": "Hm\n<tool_call>\nand so on",
    "a tag alone at the end": "Hm\n<tool_call>",
    "an opening and text": "<tool_call>\n<function=write>\nis what you write.",
    "an undeclared function": f"I call\n{xml('nothing', a='b')}\n\nDone.",
    "an undeclared function on a line": "Hm\n<function=nothing>\n<parameter=a>\nb\n</parameter>\n</function>\n",
    "the template's example": f"Like this:\n\n{EXAMPLE}\n",
    "an undeclared function with a call in it": xml("nothing", code="<tool_call>\n<function=now>\n<parameter=a>\nb"),
    "the beginning of a name": xml("writer", path="a"),
    "a fenced example": f"Like this:\n```xml\n{WRITE}\n```\nis how.",
    "a fenced example of tildes": f"~~~\n{WRITE}\n~~~",
    "a fenced example, indented": f"1. So:\n   ```\n   {WRITE}\n   ```\n",
    "a fence in a fence": f"````\n```\n{WRITE}\n```\n{WRITE}\n````\n",
    "a fence that is closed on its line": f"```\n{WRITE}\n``` and\n{WRITE}\n```\n",
    "a fence with text behind": f"```\n{WRITE}\nHm",
    "stray closing tags": "a </parameter> b </function> c\n</tool_call>\nd",
    "stray parameters": "<parameter=path>\na\n</parameter>\n",
    "other tags": "<tool_calls><tool_call_id>\n<function>\n<function=>\n<function = write>",
    "a broken tag": "<tool_call>\n<function=write\n<parameter=path>\na\n</parameter>",
    "a thought later": "yes <think> no </think>\n\n",
    "the end of a thought": "hm\n</think>\n\nyes",
    "CRLF": "a\r\nb\r\n",
    "unicode": "größe 😀 \u2028\u00a0<tool_call\u200b>",
    "the beginning of a tag at the end": "Hm\n<tool",
    "an unfinished name at the end": "Hm\n<tool_call>\n<function=write",
}
CASES = {f"prose: {name}": Case(text, [text] if text else []) for name, text in _PROSE.items()}
CASES |= {
    "plain": Case("a <think> b </think> " + WRITE, ["a <think> b </think> " + WRITE], PLAIN),
    "no thoughts": Case(f"<think>\n</think>\n{NOW}", ["<think>\n</think>", ("now", {})], ReplyFormat(False, "xml")),
    "a call": Case(WRITE, [WRITTEN]),
    "a call without parameters": Case(NOW, [("now", {})]),
    "a call on one line": Case("<tool_call><function=now></function></tool_call>", [("now", {})]),
    "a call in CRLF": Case(f"So:\r\n\r\n{WRITE}\r\n".replace("\n", "\r\n"), ["So:", WRITTEN]),
    "a call after text": Case(f"Let me see. \n\n{WRITE}", ["Let me see. ", WRITTEN]),
    "a call behind text": Case(f"Let me see.{WRITE}", ["Let me see.", WRITTEN]),
    "a call, indented": Case(f"So:\n  {WRITE}\n  ", ["So:", WRITTEN]),
    "calls in a row": Case(f"{WRITE}\n{NOW}\n{WRITE}", [WRITTEN, ("now", {}), WRITTEN]),
    "calls on a line": Case(f"{NOW.replace(chr(10), '') * 2}", [("now", {})] * 2),
    "functions in one call": Case(
        "<tool_call>\n<function=now>\n</function>\n<function=now>\n</function>\n</tool_call>",
        [("now", {})] * 2,
    ),
    "text after a call": Case(f"{WRITE}\n\nDone.\n", [WRITTEN, "Done.\n"]),
    "text between calls": Case(f"{NOW}\nAnd\n{NOW}", [("now", {}), "And", ("now", {})]),
    "a call after prose of one": Case(f"Use <tool_call>:\n{WRITE}", ["Use <tool_call>:", WRITTEN]),
    "a call after an undeclared one": Case(f"{xml('no')}\n{NOW}", [xml("no"), ("now", {})]),
    "a call after a fenced example": Case(f"```\n{NOW}\n```\n\n{NOW}", [f"```\n{NOW}\n```", ("now", {})]),
    "a call after inline code": Case(f"```a``` b\n{NOW}", ["```a``` b", ("now", {})]),
    "a call in a fence that never ends": Case(f"So:\n```xml\n{NOW}", ["So:\n```xml", ("now", {})]),
    "the last calls in a fence that never ends": Case(
        f"{NOW}\n```\n{NOW}\nHm\n{NOW}\n{WRITE}\n",
        [("now", {}), f"```\n{NOW}\nHm", ("now", {}), WRITTEN],
    ),
    "a forgotten tag": Case(WRITE.removeprefix("<tool_call>\n"), [WRITTEN]),
    "a forgotten tag after text": Case(f"So:\n{WRITE.removeprefix('<tool_call>')}", ["So:", WRITTEN]),
    "a function that the reply ends in": Case("<tool_call>\n<function=now>\n", [("now", {})]),
    "the end of a call at once": Case("<tool_call>\n<function=now>\n</tool_call>\n.", [("now", {}), "."]),
    "blanks within a call": Case("<tool_call> \n\n <function=now> \r\n </function> \n </tool_call>", [("now", {})]),
    "two opening tags": Case(f"<tool_call>\n{NOW}", ["<tool_call>", ("now", {})]),
    "a function twice": Case(f"<function=now>{NOW}", ["<function=now>", ("now", {})]),
}
_THINK = "<think>\nhm\n</think>\n\n"
CASES |= {
    "a thought": Case(f"{_THINK}yes", [Thought("hm"), "yes"]),
    "a thought and a call": Case(f"{_THINK}{WRITE}", [Thought("hm"), WRITTEN]),
    "an opened thought": Case("hm\n\nhm\n</think>\n\nyes\n", [Thought("hm\n\nhm"), "yes\n"], thinking=True),
    "a thought opened twice": Case("<think>\nhm</think>yes", [Thought("hm"), "yes"], thinking=True),
    "an empty thought": Case("<think>\n\n</think>\n\nyes", ["yes"]),
    "a thought alone": Case(_THINK, [Thought("hm")]),
    "blanks before a thought": Case(f"\n {_THINK}yes", [Thought("hm"), "yes"]),
    "an unfinished thought": Case("hm </thin", [Thought("hm </thin")], thinking=True),
    "a thought of a tag": Case(
        "I use\n<tool_call> now\n</think>\nok", [Thought("I use\n<tool_call> now"), "ok"], XML, True
    ),
    "a call in a thought": Case(
        f"I write\n{WRITE}\nand so on\n</think>\n\nok", [Thought(f"I write\n{WRITE}\nand so on"), "ok"], XML, True
    ),
    "a call in a thought, and another": Case(
        f"I write\n{WRITE}\n</think>\n\n{NOW}", [Thought(f"I write\n{WRITE}"), ("now", {})], XML, True
    ),
    "calls that end a thought": Case(f"hm\n{WRITE}\n{NOW}\n", [Thought("hm"), WRITTEN, ("now", {})], XML, True),
    "the last call of a thought": Case(
        f"I could\n{WRITE}\nbut no\n{NOW}", [Thought(f"I could\n{WRITE}\nbut no"), ("now", {})], XML, True
    ),
    "a call in an unfinished thought": Case(f"hm\n{WRITE} or", [Thought(f"hm\n{WRITE} or")], XML, True),
    "an undeclared call that ends a thought": Case(
        f"hm\n{xml('nothing')}", [Thought(f"hm\n{xml('nothing')}")], XML, True
    ),
    "an unfinished call that ends a thought": Case(
        "hm\n<tool_call>\n<function=write>\n<parameter=path>\na",
        [Thought("hm\n<tool_call>\n<function=write>\n<parameter=path>\na")],
        XML,
        True,
    ),
    "a call in a thought that a limit cuts": Case(f"hm\n{WRITE}", [Thought(f"hm\n{WRITE}")], XML, True, "cut"),
    "a thought that a limit cuts": Case("hm\n\n</th", [Thought("hm")], XML, True, "cut"),
    "a fence in a thought": Case(f"```\n</think>\n{NOW}", [Thought("```"), ("now", {})], XML, True),
}
