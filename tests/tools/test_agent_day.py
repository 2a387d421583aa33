"""An agent's day of a few turns, and how its sums are judged."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import agent_day
import pytest
from agent_apis import APIS, Reply
from agent_day import SCENARIOS, Day, Sent


@pytest.mark.slow
def test_a_short_day(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All APIs at once, on a server of its own: each prompt is counted as its template has it, and nothing differs."""
    few = ["--turns", "4", "--scenarios", "three", "--words", "20", "40", "--check", "3"]
    monkeypatch.setattr(agent_day, "MOST", 9.0)  # of so little, much is the first time
    monkeypatch.setattr(sys, "argv", ["agent_day.py", *few])
    assert agent_day.main() == 0
    told = capsys.readouterr().out
    assert "three at once (messages, chat, responses): 15 requests, " in told and "beside their chat" not in told
    assert "3 completions compared with the same requests alone: 0 differ" in told


@pytest.mark.parametrize(
    ("name", "first", "cached", "well"),
    [
        ("kept", 0.5, 900, True),
        ("kept", 0.5, 0, False),
        ("memory", 0.5, 0, True),
        ("restart", 3.0, 0, True),  # a second computes 333 tokens, in each of three conversations
        ("restart", 6.0, 0, False),
        ("restart", 6.0, 900, True),
    ],
)
def test_too_much_that_is_computed(
    name: str, first: float, cached: int, well: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    day = Day(SCENARIOS[name], argparse.Namespace())
    day.sent = [
        Sent("chat", {}, Reply({}, 1000, had, first), necessary, False) for had, necessary in ((0, 1000), (cached, 100))
    ]
    assert day.report() == well
    assert "2 requests" in capsys.readouterr().out


CALL = {"id": "1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "ruth.txt"}'}}
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Read."},
    {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "And it came to pass"},
]


def test_a_conversation_in_each_api() -> None:
    call = {"id": "1", "name": "read_file", "input": {"path": "ruth.txt"}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "And it came to pass"}
    found = APIS["messages"].body(HISTORY, agent_day.TOOLS, True)
    assert found["system"] == "Be brief." and found["tool_choice"]["type"] == "any"
    assert found["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Read."}]},
        {"role": "assistant", "content": [thought, {"type": "tool_use", **call}]},
        {"role": "user", "content": [result]},
    ]
    assert [item.get("type", item.get("role")) for item in APIS["responses"].body(HISTORY, [], False)["input"]] == [
        *("user", "reasoning", "function_call", "function_call_output")
    ]
