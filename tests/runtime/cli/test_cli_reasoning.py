"""`trigraph run` with thoughts, tools and other templates; what a chat keeps of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.command import Run, assert_one_line_error
from support.fakes.thinking_engine import thinking_engine
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Sampling
from trigraph.runtime.cli.console import stream
from trigraph.runtime.text.reply import Arguments, CallBegun, CallEnded, Content, Event, Reasoning

GREEDY = Options(Sampling(temperature=0))
THOUGHT = "hm hm\n</think>\n\nYes."
CALLING = 'So\n</think>\n\nI look.\n<tool_call>\n{"name": "look", "arguments": {"where": "up"}}\n</tool_call>'
TOOLS: list[dict[str, Any]] = [{"function": {"name": "look", "parameters": {"properties": {}}}}]


def use(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    monkeypatch.setattr("trigraph.runtime.cli.opening.load", lambda path, **options: engine)


@pytest.mark.parametrize(
    ("options", "out"),
    [
        ([], THOUGHT + "\n"),
        (["--reasoning", "hide"], "Yes.\n"),
        (["--reasoning-budget", 2], "hm\n</think>\n\n</think>\n\nYes.\n"),  # the script goes on
        (["--chat-template-kwargs", '{"enable_thinking": false}'], THOUGHT + "\n"),
    ],
    ids=str,
)
def test_a_thought_is_shown_or_hidden(
    trigraph: Run, monkeypatch: pytest.MonkeyPatch, options: list[Any], out: str
) -> None:
    use(monkeypatch, thinking_engine(THOUGHT))
    result = trigraph("run", "model", "-p", "Really?", "--temp", 0, *options)
    assert (result.status, result.out) == (0, out)


def test_a_message_tells_the_thought_apart(trigraph: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    use(monkeypatch, thinking_engine(CALLING))
    options = ["--temp", 0, "--json", "--tools", tmp_path / "tools.json"]
    message = json.loads(trigraph("run", "model", "-p", "Where?", *options).out)["message"]
    (call,) = message.pop("tool_calls")
    assert message == {"role": "assistant", "content": "I look.", "reasoning_content": "So"}
    assert call["function"] == {"name": "look", "arguments": '{"where": "up"}'}
    raw = json.loads(trigraph("run", "model", "-p", "Where?", "--temp", 0, "-n", 4, "--json", "--raw").out)
    assert raw["message"] == {"role": "assistant", "content": raw["text"]}


def test_thinking_can_be_switched(trigraph: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ raise_exception(enable_thinking ~ x ~ eos_token) }}")
    use(monkeypatch, thinking_engine(THOUGHT))
    options = ["--chat-template-file", template, "--chat-template-kwargs", '{"x": 3, "enable_thinking": 7}']
    for option, text in ((["--think"], "True3<|end|>"), (["--no-think"], "False3<|end|>"), ([], "73<|end|>")):
        assert_one_line_error(trigraph("run", "model", "-p", "Really?", *option, *options), text)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--reasoning", "maybe"], "expected show or hide"),
        (["--reasoning-budget", "-1"], "reasoning_budget is -1"),
        (["--chat-template-kwargs", "{"], "--chat-template-kwargs is not JSON"),
        (["--chat-template-kwargs", "[]"], "--chat-template-kwargs must be a JSON object"),
        (["--chat-template-kwargs", '{"messages": 1}'], "messages is reserved"),
        (["--chat-template-file", "{tmp}/none"], "none: cannot be read"),
        (["--tools", "{tmp}/none"], "none: cannot be read"),
        (["--tools", "{tmp}/tools.json"], "is no tool"),
        (["--chat-template", "chatml"], "--chat-template-file"),
    ],
    ids=str,
)
def test_mistakes(
    trigraph: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], text: str
) -> None:
    (tmp_path / "tools.json").write_text('[{"name": 1}]')
    use(monkeypatch, thinking_engine(THOUGHT))
    options = [option.replace("{tmp}", str(tmp_path)) for option in options]
    assert_one_line_error(trigraph("run", "model", "-p", "Really?", *options), text)


def test_a_chat_takes_results_of_calls(trigraph: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    use(monkeypatch, thinking_engine(CALLING, "fine\n</think>\n\nBlue."))
    options = ["--temp", 0, "--tools", tmp_path / "tools.json", "--reasoning", "hide"]
    result = trigraph("run", "model", *options, stdin=b"Where?\nthe sky\n/stats\n/exit\n", terminal=True)
    assert result.out == '> I look.\nlook {"where": "up"}\nlook returned> Blue.\n> > '
    assert "4 messages" in result.err


def test_a_conversation_keeps_thoughts_apart() -> None:
    engine = thinking_engine(CALLING, THOUGHT)
    chat = engine.chat(tools=TOOLS)
    events = list(chat.say("Where?", GREEDY).events())
    assert "".join(event.text for event in events if isinstance(event, Reasoning)) == "So"
    assert chat.messages[-1]["reasoning_content"] == "So"
    with pytest.raises(TrigraphError, match="1 tool calls wait for a result; 2 were given"):
        chat.give(["a", "b"])
    assert "".join(chat.give(["the sky"], GREEDY)) == THOUGHT
    assert chat.messages[-1] == {"role": "assistant", "content": "Yes.", "reasoning_content": "hm hm"}
    assert chat.messages[-2]["tool_call_id"] == chat.messages[-3]["tool_calls"][0]["id"]
    assert chat.calls == []


def test_an_interrupted_thought_stays_a_thought() -> None:
    chat = thinking_engine(THOUGHT).chat()
    reply = chat.say("Really?", GREEDY)
    request = reply.request
    request.listen(lambda: request.cancel() if len(request.text) >= 3 else None)  # the engine runs ahead of readers
    for _ in reply:
        pass
    assert chat.messages[-1]["content"] == ""
    assert THOUGHT.startswith(chat.messages[-1]["reasoning_content"])


def test_what_a_terminal_shows(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    request = thinking_engine(THOUGHT).generate("a<|end|>", GREEDY)
    events: list[Event] = [
        Reasoning("a"),
        Reasoning("b"),
        Content("c"),
        Content("d"),
        CallBegun(0, "", "f"),
        Arguments(0, "{}"),
        CallEnded(0),
    ]
    stream(events, request)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    stream(events, request)
    stream(events[2:], request, hide_reasoning=True)
    plain, dimmed = "ab\n\ncd\nf {}\n", "\x1b[2ma\x1b[0m\x1b[2mb\x1b[0m\n\ncd\nf {}\n"
    assert capsys.readouterr().out == plain + dimmed + "cd\nf {}\n"
