"""The audit of servers: what it asks, what it notices, and what it writes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.command import Run
from support.servers.audited_server import AuditedServer, Body, running, text_of
from trigraph.models.errors import TrigraphError
from trigraph.runtime.audit import Client, Plan, Report, audit
from trigraph.runtime.audit.answer import Answer
from trigraph.runtime.audit.asking import Asking
from trigraph.runtime.audit.conditions import conditions
from trigraph.runtime.audit.page import write_page
from trigraph.runtime.audit.plan import Case, Prompt, read_prompts, shipped_prompts

PROMPTS = tuple(Prompt("test", f"This is prompt {number}. " + "It has words. " * number) for number in range(4))
PLAN = Plan(PROMPTS, tokens=6, companions=(2, 4), others=3, idle=0.0, steps=4, long_prompt=500)


def audited(server: AuditedServer, plan: Plan = PLAN, **client: Any) -> Report:
    with running(server) as url:
        return audit(Client(url, **client), plan)


def differing(report: Report) -> set[str]:
    return {outcome.condition for outcome in report.everything if outcome.findings}


def test_a_server_with_one_answer_passes() -> None:
    report = audited(AuditedServer(lacks=frozenset({"template"})))
    assert (report.same, report.unaudited, report.groups()) == (True, "", [])
    assert differing(report) == set()
    assert {o.condition for o in report.outcomes} == {*report.conditions} - {"as a rendered prompt"}
    assert (report.model, report.api, report.logprobs) == ("made-up", "completions", True)
    assert report.distinct(next(iter(report.expected))) == (1, 1)
    assert report.notes() == ["not asked: as a rendered prompt (needs --api chat)"]


def test_companions_are_asked_at_the_same_time() -> None:
    meeting = threading.Barrier(5)

    class Meeting(Asking):
        def ask(self, case: Case, **_: object) -> Answer:
            meeting.wait(60)
            return Answer("")

    plan = Plan(PROMPTS[:1], companions=(4,))
    (among,) = [condition for condition in conditions(plan) if condition.name == "among 4 others"]
    with running(AuditedServer()) as url:
        found = [*among.ask(Meeting(Client(url), plan), plan.cases)]
    assert len(found) == 10
    assert {case for case, _ in found} == {*plan.cases}


@pytest.mark.parametrize(
    ("spoiled", "expected"),
    [
        (lambda body: body.get("stream"), {"streamed"}),
        (lambda body: body["max_tokens"] == 1, {"token by token"}),
        (lambda body: body["temperature"] > 0 and body.get("stream"), {"streamed"}),
    ],
)
def test_a_condition_that_matters_is_named(spoiled: Callable[[dict[str, Any]], bool], expected: set[str]) -> None:
    report = audited(AuditedServer(lambda body: "?" * 9 if spoiled(body) else text_of(body)))
    assert differing(report) == expected


def without(*names: str) -> dict[str, Any]:
    return {"lacks": frozenset(names)}


def _numbered(reply: Body, _body: Body) -> None:
    reply["system_fingerprint"] = reply["id"]


def _crlf(pieces: Any, _body: Body) -> Any:
    for piece in pieces:
        yield piece.replace(b"\n", b"\r\n").replace(b"data: ", b"data:")


def _without_done(pieces: Any, _body: Body) -> Any:
    return (piece for piece in pieces if b"[DONE]" not in piece)


def _with_null(pieces: Any, body: Body) -> Any:
    if body.get("stream"):
        yield b'event: x\nid: 1\ndata: {"choices": [{"delta": {"role": "assistant"}}], "usage": null, "model": null}\n'
    yield from pieces


def _chunk_of_usage_refused(reply: Body, body: Body) -> Any:
    return 400 if "stream_options" in body else reply


def _short_context(reply: Body, body: Body) -> Any:
    return 400 if len(body["prompt"]) > 120 else reply


def _no_logprobs(reply: Body, _body: Body) -> Any:
    reply["choices"][0].pop("logprobs", None)
    return reply


def _changed(change: Callable[[Body, Body], Any]) -> dict[str, Any]:
    return {"spoil": lambda reply, body: reply if (found := change(reply, body)) is None else found}


@pytest.mark.parametrize(
    ("shape", "notes"),
    [
        (without("logprobs"), ["tokens", "log-probabilities"]),
        (_changed(_no_logprobs), ["tokens", "log-probabilities"]),
        (without("stream_usage"), ["usage of streams"]),
        (_changed(_chunk_of_usage_refused), ["usage of streams"]),
        (without("usage", "model", "finish"), ["usage", "model", "finish_reason", "usage of streams"]),
        (without("fingerprint"), ["system_fingerprint"]),
        (_changed(_numbered), ["system_fingerprint"]),
        (without("seed"), ["seeded"]),
        (without("tokenize"), ["token by token"]),
        (without("completions", "template"), ["token by token", "as a rendered prompt"]),
        (_changed(_short_context), ["after 3 others"]),
        ({"answers": lambda body: "" if body["prompt"].endswith("7.") else text_of(body)}, ["4 of 40 texts alone are"]),
        ({"wire": _crlf}, []),
        ({"wire": _without_done}, []),
        ({"wire": _with_null}, []),
    ],
)
def test_honest_servers_of_several_shapes_are_the_same(shape: dict[str, Any], notes: list[str]) -> None:
    many = tuple(Prompt("test", f"Prompt {number}.") for number in range(20))
    plan = replace(PLAN, prompts=many if "answers" in shape else PROMPTS, companions=(2,))
    report = audited(AuditedServer(**shape), plan)
    assert report.same, (report.headline(), report.groups())
    told = report.notes()
    for note in notes:
        assert any(note in each for each in told), (note, told)


def test_chat_is_asked_where_there_are_no_completions() -> None:
    report = audited(AuditedServer(lacks=frozenset({"completions"})))
    assert report.api == "chat"
    assert report.same
    assert report.total.answers > 50
    report = audited(AuditedServer(), api="chat")
    assert "as a rendered prompt" not in report.skipped
    assert report.same


def test_a_rendered_prompt_is_not_compared_with_an_answer_that_has_reasoning() -> None:
    def reason(reply: Body, body: Body) -> None:
        if "messages" in body:
            reply["choices"][0]["message"] = {"reasoning": "Well", "content": "four"}

    report = audited(AuditedServer(**_changed(reason)), api="chat")
    assert report.skipped["as a rendered prompt"] == "needs answers without reasoning"


def test_failures_are_counted() -> None:
    report = audited(AuditedServer(spoil=lambda reply, body: 500 if body.get("stream") else reply))
    assert (report.total.failures, report.total.texts) == (8, 0)
    assert not report.same
    assert {o.failure.detail for o in report.outcomes if o.failure} == {"broken"}
    assert "8 requests failed" in report.headline()


def test_a_limited_time_is_kept() -> None:
    server = AuditedServer()
    report = audited(server, Plan(PROMPTS, seconds=0.0))
    assert len(server.bodies) < 10
    assert report.total.answers < 10
    assert report.unaudited == "no answers were compared (no time left)"
    assert report.not_asked()["6 of 8 requests"] == "no time left"
    assert set(report.not_asked().values()) == {"no time left", "needs --api chat"}


def test_time_to_idle_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes all the time that it is given is looked at after idling, too."""
    now, slept = [0.0], []
    quick = Plan(PROMPTS).quick()
    assert quick.idle > 30

    def pause(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    class Slow(AuditedServer):
        def reply(self, path: str, body: Body) -> tuple[int, Any]:
            now[0] += 0.7
            return super().reply(path, body)

    class Clock:
        monotonic, sleep = staticmethod(lambda: now[0]), staticmethod(pause)

    monkeypatch.setattr("trigraph.runtime.audit.asking.time", Clock)
    monkeypatch.setattr("trigraph.runtime.audit.run.time", Clock)
    report = audited(Slow(), quick)
    assert slept == [quick.idle]
    assert f"after {quick.idle:.0f} s idle" in report.shown()
    assert "no time left" in report.not_asked().values() or report.count("again").answers < 8
    assert now[0] < quick.seconds + 10


def test_bytes_are_bounded_in_all() -> None:
    report = audited(AuditedServer(), replace(PLAN, bytes=5000))
    assert set(report.not_asked().values()) == {"answers had more than 5000 bytes", "needs --api chat"}


def test_prompts_are_of_several_kinds(tmp_path: Path) -> None:
    prompts = shipped_prompts()
    assert len({prompt.text for prompt in prompts}) == 40
    assert len({prompt.kind for prompt in prompts}) == 8
    for name, text in (("a.txt", "one\n\ntwo\n"), ("a.json", '["one", "two"]')):
        (tmp_path / name).write_text(text)
        assert [prompt.text for prompt in read_prompts(tmp_path / name)] == ["one", "two"]
    for name, text in (("b.txt", "\n"), ("b.json", "{}"), ("c.json", "[")):
        (tmp_path / name).write_text(text)
        with pytest.raises(TrigraphError, match=name):
            read_prompts(tmp_path / name)


def test_the_page_shows_what_differs(tmp_path: Path) -> None:
    server = AuditedServer(lambda body: "<b>" if body.get("stream") else text_of(body))
    report = audited(server)
    write_page(report, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert f"8 of {len(report.everything)} differ" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page.replace("<b class=", "")
    assert page.count('class="text"') == 8 + 1  # and the legend
    row = re.search("<td>streamed</td>(.*?)</tr>", page, re.DOTALL)
    assert row is not None
    assert re.findall("<td>(.*?)</td>", row[1]) == ["4 of 4", "4 of 4", "0", "0", "0", "0", "0"]
    assert re.search("<td>streamed</td><td>text</td><td>different</td><td>8</td>", page)
    write_page(audited(AuditedServer()), tmp_path / "same.html")
    assert "the same</p>" in (tmp_path / "same.html").read_text()


def test_the_exit_status_says_what_was_found(trigraph: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Asking, "sleep", lambda *_: None)
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    page = tmp_path / "page.html"
    options = ["--prompts", tmp_path / "prompts.txt", "-n", 3, "--companions", "2", "--html", page]
    with running(AuditedServer()) as url:
        found = trigraph("audit", url, *options, "--quick", "--json")
        assert found.status == 0, found.err
        assert json.loads(found.out)["same"] is True
        assert "note: not asked: as a rendered prompt (needs --api chat)" in trigraph("audit", url, *options).err
    with running(AuditedServer(lambda body: "\ud800" if body.get("stream") else text_of(body))) as url:
        found = trigraph("audit", url, *options, "--json")
        assert found.status == 1
        assert {each["condition"] for each in json.loads(found.out)["differences"]} == {"streamed"}
        assert "\\ud800" in page.read_text()
    with running(AuditedServer(lambda body: "", models={"data": [{"id": "[/red]\x1b[31m\ud800"}]})) as url:
        found = trigraph("audit", url, *options)
        assert found.status == 2
        assert "not audited: 4 of 4 requests alone were answered with an empty text" in found.err
        assert "[/red]" in found.out
        assert "\x1b[31m" not in found.out
        found = trigraph("audit", url, *options, "--json")
        assert (found.status, json.loads(found.out)["audited"]) == (2, False)
    assert trigraph("audit", url, "--timeout", "0").status == 2
    found = trigraph("audit", "127.0.0.1:1")
    assert (found.status, "such as http://127.0.0.1:8080" in found.err) == (2, True)
