"""Chat templates: what they are given, and the sandbox that they run in."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import pytest

from support.fakes.engine import TEMPLATE
from support.servers.replies import TOOLS
from trigraph.models.errors import TrigraphError
from trigraph.runtime.text import template_process
from trigraph.runtime.text.control_names import MARK, ControlNames
from trigraph.runtime.text.template import ChatTemplate
from trigraph.runtime.text.template_renderer import Renderer, TemplateError


def call_of(arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<b>Grüße</b>"}]


def test_a_template_renders_messages() -> None:
    template = ChatTemplate(TEMPLATE, {"eos_token": "<e>"})
    expected = "<|system|>Be brief.<e><|user|><b>Grüße</b><e>"
    assert template.render(MESSAGES) == expected + "<|assistant|>"
    assert template.render(MESSAGES, add_generation_prompt=False) == expected


def test_helpers_of_templates() -> None:
    source = (
        """{{ {"k": "<ü>"}|tojson }} {{ strftime_now("%Y")|length }} {% for i in range(9) %}{% break %}{% endfor %}"""
    )
    assert ChatTemplate(source, {}).render([]) == '{"k": "<ü>"} 4 '


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('no tools here') }}", "no tools here"),
        ("{{ messages[0].content.undefined.more }}", "undefined"),
        ("{{ ().__class__.__bases__[0].__subclasses__() }}", "unsafe|undefined"),
        ("{{ messages.append(1) }}", "unsafe|safely"),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", "unsafe|undefined"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "ran for more than"),
        ("{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}", "more than .* characters"),
        ("{{ 'x' * 10**9 }}", "of memory"),
        ("{{ 9 ** (9 ** 9) }}", "ran for more than"),
        ("{{ 'x'.ljust(2000000000) }}", "of memory"),
        ("{{ 'x'|center(2000000000) }}", "of memory"),
        ("{{ '%2000000000d' % 1 }}", "of memory|too"),
        ("{{ 'xx'.replace('x', 'y' * 90000000).replace('y', 'zzzzzz') }}", "of memory"),
        (
            "{% set n = namespace(s=[0]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
            "of memory|ran for more than",
        ),
        ("{{ range(10**9) }}", "Range too big"),
        (
            "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
            "of memory",
        ),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ 1 / 0 }}", "division"),
        ("{% include 'other' %}", "no loader"),
    ],
)
def test_a_template_cannot_break_out_or_run_away(source: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trigraph.runtime.text.template_renderer._MAX_SECONDS", 2.0)
    monkeypatch.setattr("trigraph.runtime.text.template_renderer._MAX_MEMORY", 64 << 20)
    with pytest.raises(TrigraphError, match=message):
        ChatTemplate(source, {}).render(MESSAGES)


@pytest.mark.parametrize("source", ["{% if %}", "{{ " + "(" * 5000, "x" * (2 << 20)])
def test_a_template_with_bad_syntax(source: str) -> None:
    template = ChatTemplate(source, {})
    for _ in range(2):
        with pytest.raises(TrigraphError, match=r"the chat template failed .*(line 1|recursion|nested|crash|limit)"):
            template.render(MESSAGES)


def test_a_template_goes_on_after_a_failure() -> None:
    """Its process is started anew after it had to be ended, and after it was ended from outside."""
    template = ChatTemplate(
        "{% if messages|length > 1 %}{% for a in range(9999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
        "{% endif %}{{ messages|length }}",
        {},
    )
    assert template.render(MESSAGES[:1]) == "1"
    with (
        patch("trigraph.runtime.text.template_renderer._MAX_SECONDS", 0.2),
        pytest.raises(TrigraphError, match="ran for more than"),
    ):
        template.render(MESSAGES)
    assert template.render(MESSAGES[:1]) == "1"
    assert template._renderer is not None
    process = template._renderer.process
    process.kill()
    process.wait()
    assert template.render(MESSAGES[:1]) == "1"


def test_a_tag_of_training_is_ignored() -> None:
    source = "{% for m in messages %}{% generation %}\n{{ m.content }}{% endgeneration %}{% endfor %}"
    assert ChatTemplate(source, {}).render(MESSAGES[:1]) == "Be brief."


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", '{"b": "ü<", "a": [1]}'),
        ("separators=(',', ':')", '{"b":"ü<","a":[1]}'),
        ("sort_keys=true", '{"a": [1], "b": "ü<"}'),
        ("ensure_ascii=true", '{"b": "\\u00fc<", "a": [1]}'),
        ("indent=1", '{\n "b": "ü<",\n "a": [\n  1\n ]\n}'),
    ],
)
def test_json_in_templates(arguments: str, text: str) -> None:
    assert ChatTemplate(f'{{{{ {{"b": "ü<", "a": [1]}}|tojson({arguments}) }}}}', {}).render([]) == text


def test_what_a_template_is_given() -> None:
    source = "{{ tools is none }} {{ documents is none }} {{ enable_thinking is defined }}"
    template = ChatTemplate(source, {})
    assert template.render([]) == "True True False"
    assert template.render([], tools=TOOLS, variables={"enable_thinking": False}) == "False True True"
    with pytest.raises(TrigraphError, match="messages is reserved"):
        template.render([], variables={"messages": []})
    with pytest.raises(TrigraphError, match="cannot be written as JSON"):
        template.render([], variables={"x": object()})


THOUGHT = {"role": "assistant", "reasoning_content": "hm", "content": "yes"}
WITHIN = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"a":1}'}}]}
BROKEN = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}
PARTS = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
READS = "{% for m in messages %}[{{ m.reasoning_content }}|{{ m.content }}]{% endfor %}"
CUTS = "{% for m in messages %}[{{ m.content.split('</think>')[-1] }}|{{ m.content }}]{% endfor %}"
CALLS = """\
{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments }}{% endfor %}{% endfor %}"""


@pytest.mark.parametrize(
    ("source", "message", "text"),
    [
        (READS, THOUGHT, "[hm|yes]"),
        (READS, WITHIN, "[hm|yes]"),
        (READS, {"role": "assistant", "content": "hm\n</think>yes"}, "[hm|yes]"),
        (READS, {"role": "user", "content": "a</think>b"}, "[|a</think>b]"),
        (CUTS, THOUGHT, "[\n\nyes|<think>\nhm\n</think>\n\nyes]"),
        (CUTS, WITHIN, "[\n\nyes|<think>\nhm\n</think>\n\nyes]"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", THOUGHT, "yes"),
        (CALLS, CALL, "{'a': 1}"),
        (CALLS + "{# arguments is string #}", CALL, '{"a":1}'),
        (CALLS, BROKEN, "{'arguments': '{'}"),
        (CALLS + "{# arguments is string #}", BROKEN, '{"arguments": "{"}'),
        (CALLS, call_of(""), "{}"),
        (CALLS, call_of(" null"), "{}"),
        (CALLS, call_of(None), "{}"),
        (CALLS, call_of("[1]"), "{'arguments': [1]}"),
        (CALLS + "{# arguments is string #}", call_of(""), "{}"),
        (CALLS + "{# arguments is string #}", call_of({"a": "ü"}), '{"a": "ü"}'),
        (CALLS, PARTS, "a\nb"),
        (CALLS + "{# content is string #}", PARTS, "a\nb"),
        (CALLS + "{# content is string, part.text #}", PARTS, str(PARTS["content"])),
        (CALLS + "{# content is string, part['text'] #}", PARTS, str(PARTS["content"])),
    ],
)
def test_history_is_as_the_template_reads_it(source: str, message: Mapping[str, Any], text: str) -> None:
    given = dict(message)
    assert ChatTemplate(source, {}).render([message]) == text
    assert message == given


def test_a_template_is_compiled_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A long one takes tenths of a second to compile."""
    template = {"source": "{{ messages[0].content }}", "special_tokens": {}}
    requests = [
        {"variables": {}, "messages": [{"content": str(number)}], "conversations": [[0]]} for number in range(5)
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(json.dumps(line) + "\n" for line in (template, *requests))))
    with patch.object(template_process, "compile_template", wraps=template_process.compile_template) as compiled:
        template_process.main(0)
    assert compiled.call_count == 1
    responses = map(json.loads, capsys.readouterr().out.splitlines())
    assert [*responses] == [{"ready": True}, *({"texts": [{"shared": 0, "rest": str(number)}]} for number in range(5))]


def test_conversations_that_share_messages_are_rendered_together() -> None:
    """One that the template refuses has its error, and the first one's is all there is."""
    source = "{% for m in messages %}{{ m.content or raise_exception('no content') }}{% endfor %}|{{ messages|length }}"
    a, b, empty = ({"role": "user", "content": text} for text in ("<|end|>x", "b", ""))
    template = ChatTemplate(source, {}, ControlNames(["<|end|>"]))
    with patch.object(Renderer, "render", autospec=True, side_effect=Renderer.render) as asked:
        texts = template.render_all([[a, b], [a, b, a], [a, empty], [b, a], []])
    marked = f"<{MARK}|end|>x"
    assert texts[:2] == [f"{marked}b|2", f"{marked}b{marked}|3"] and texts[3:] == [f"b{marked}|2", "|0"]
    assert isinstance(texts[2], TemplateError) and "no content" in str(texts[2])
    assert len(json.loads(asked.call_args.args[2])["messages"]) == 3
    refused = template.render_all([[empty], [a]])
    assert [str(each) for each in refused] == ["the chat template failed (no content)"] * 2


def test_a_template_keeps_its_process() -> None:
    with patch.object(Renderer, "__init__", autospec=True, side_effect=Renderer.__init__) as started:
        template = ChatTemplate("{{ messages[0].content }}", {})
        assert [template.render([{"role": "user", "content": text}]) for text in "abc"] == [*"abc"]
    assert started.call_count == 1
