"""The audit of servers: what it asks, what it notices, and what it writes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.command import run_command
from trigraph.models.errors import TrigraphError
from trigraph.runtime.audit import Client, Plan, Report, audit
from trigraph.runtime.audit.answer import Answer, Difference, difference
from trigraph.runtime.audit.asking import Asking
from trigraph.runtime.audit.conditions import conditions
from trigraph.runtime.audit.page import write_page
from trigraph.runtime.audit.plan import Case, Prompt, read_prompts, shipped_prompts

PROMPTS = tuple(Prompt("test", f"This is prompt {number}. " + "It has words. " * number) for number in range(3))
PLAN = Plan(PROMPTS, tokens=6, companions=(2, 4), others=3, idle=0.0, steps=4, long_prompt=500)


class Server:
    """A server whose tokens are single characters. `answers` gives the text for a body."""

    def __init__(self, answers: Callable[[dict[str, Any]], str] | None = None, **has: bool) -> None:
        self.answers = answers or text_of
        self.has = {"completions": True, "logprobs": True, "seed": True, "tokenize": True, "template": False} | has
        self.bodies: list[dict[str, Any]] = []

    def reply(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/tokenize" and self.has["tokenize"]:
            return 200, {"tokens": [ord(c) for c in body["content"]]}
        if path == "/apply-template" and self.has["template"]:
            return 200, {"prompt": body["messages"][0]["content"]}
        chat = path == "/v1/chat/completions"
        if not chat and not (path == "/v1/completions" and (self.has["completions"] or self.has["template"])):
            return 404, {"error": {"message": f"no {path}"}}
        for name in ("logprobs", "seed"):
            if name in body and not self.has[name]:
                return 400, {"error": {"message": f"{name} is not supported"}}
        given = body["messages"][0]["content"] if chat else body["prompt"]
        prompt = given if isinstance(given, str) else "".join(map(chr, given))
        self.bodies.append(body)
        text = self.answers(body | {"prompt": prompt})[: body["max_tokens"]]
        values = [-ord(character) / 8 for character in text]
        choice: dict[str, Any] = {"message": {"content": text}} if chat else {"text": text}
        if "logprobs" in body and chat:
            entries = [{"token": c, "logprob": v} for c, v in zip(text, values, strict=True)]
            choice["logprobs"] = {"content": entries}
        elif "logprobs" in body:
            choice["logprobs"] = {"tokens": [*text], "token_logprobs": values}
        return 200, {"choices": [choice]}


def text_of(body: dict[str, Any]) -> str:
    """A text that continues itself, token by token: each is made of its position and the prompt's first line."""
    prompt = body["prompt"]
    begun = prompt.rstrip("#0123456789")
    at = len(prompt) - len(begun)
    return "".join("#0123456789"[(len(begun) + i) % 11] for i in range(at, at + 40))


@contextmanager
def running(server: Server) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, {"data": [{"id": "made-up"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, found = server.reply(self.path, body)
            if status == 200 and body.get("stream"):
                self.send_response(200)
                self.end_headers()
                choice = found["choices"][0]
                if "message" in choice:
                    choice["delta"] = choice.pop("message")
                self.wfile.write(b": alive\n\ndata: " + json.dumps(found).encode() + b"\n\ndata: [DONE]\n\n")
            else:
                self._send(status, found)

        def _send(self, status: int, found: Any) -> None:
            data = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()


def audited(server: Server, plan: Plan = PLAN, **client: Any) -> Report:
    with running(server) as url:
        return audit(Client(url, **client), plan)


def differing(report: Report) -> set[str]:
    return {o.condition for o in report.outcomes if o.difference is not None or o.failure is not None}


def test_a_server_with_one_answer_passes() -> None:
    report = audited(Server())
    assert report.total.same
    assert differing(report) == set()
    assert {o.condition for o in report.outcomes} == {*report.conditions} - {"as a rendered prompt"}
    assert (report.model, report.api, report.logprobs) == ("made-up", "completions", True)
    assert report.distinct(next(iter(report.expected))) == (1, 1)


def test_companions_are_asked_at_the_same_time() -> None:
    meeting = threading.Barrier(5)

    class Meeting(Asking):
        def ask(self, case: Case, **_: object) -> Answer:
            meeting.wait(60)
            return Answer("")

    plan = Plan(PROMPTS[:1], companions=(4,))
    (among,) = [condition for condition in conditions(plan) if condition.name == "among 4 others"]
    with running(Server()) as url:
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
    report = audited(Server(lambda body: "?" * 9 if spoiled(body) else text_of(body)))
    assert differing(report) == expected


def test_a_cache_that_matters_is_noticed() -> None:
    seen: list[str] = []

    def answers(body: dict[str, Any]) -> str:
        cached = any(prompt != body["prompt"] and body["prompt"].startswith(prompt) for prompt in seen)
        seen.append(body["prompt"])
        return "?" * 9 if cached else text_of(body)

    assert differing(audited(Server(answers))) >= {"after its beginning", "built up in turns"}


def test_a_server_without_seeds_and_logprobs_is_audited_for_text() -> None:
    server = Server(logprobs=False, seed=False, tokenize=False)
    report = audited(server)
    assert report.total.same
    assert not report.logprobs
    assert report.skipped["seeded"] == "the server takes no seed"
    assert report.skipped["token by token"] == "needs /tokenize"
    assert {case.sampling.name for case in report.expected} == {"greedy"}


def test_chat_is_asked_where_there_are_no_completions() -> None:
    report = audited(Server(completions=False))
    assert report.api == "chat"
    assert report.total.same
    assert report.total.answers > 50
    report = audited(Server(completions=False, template=True), api="chat")
    assert "as a rendered prompt" not in report.skipped
    assert report.total.same


def test_failures_are_counted() -> None:
    class Failing(Server):
        def reply(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
            return (500, {"detail": "broken"}) if body.get("stream") else super().reply(path, body)

    report = audited(Failing())
    assert (report.total.failures, report.total.texts) == (6, 0)
    assert not report.total.same
    assert {o.failure for o in report.outcomes if o.failure} == {"500: broken"}


def test_differences() -> None:
    one = Answer("abc", ("a", "bc"), (-1.0, -2.0))
    assert difference(one, one) is None
    assert difference(one, Answer("abc")) is None
    assert difference(one, Answer("abc", ("a", "bc"), (-1.0, -2.5))) == Difference(False, 1, None, 0.5)
    assert difference(one, Answer("abd", ("a", "bd"), (-1.25, -9.0))) == Difference(True, 1, 2, 0.25)
    assert difference(one, Answer("ab")) == Difference(True, None, 2, 0.0)


def test_a_limited_time_is_kept() -> None:
    server = Server()
    report = audited(server, Plan(PROMPTS, seconds=0.0))
    assert len(server.bodies) < 10
    assert report.total.answers < 10
    assert set(report.left_out().values()) == {"no time left", "needs --api chat"}


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
    server = Server(lambda body: "<b>" if body.get("stream") else text_of(body))
    report = audited(server)
    write_page(report, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert f"6 of {report.total.answers} differ" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page.replace("<b class=", "")
    assert page.count('class="text"') == 6 + 1  # and the legend
    row = re.search("<td>streamed</td>(.*?)</tr>", page, re.DOTALL)
    assert row is not None
    assert re.findall("<td>(.*?)</td>", row[1]) == ["3 of 3", "3 of 3", "0", "0", "0", "0"]
    write_page(audited(Server()), tmp_path / "same.html")
    assert "the same</p>" in (tmp_path / "same.html").read_text()


@pytest.mark.slow
def test_the_command_ends_with_1_where_answers_differ(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    options = ["--prompts", str(tmp_path / "prompts.txt"), "-n", "3", "--companions", "2", "--json", "--quick"]
    with running(Server()) as url:
        found = run_command("audit", url, *options)
        assert found.status == 0, found.err
        assert json.loads(found.out)["same"] is True
    with running(Server(lambda body: "?" if body.get("stream") else text_of(body))) as url:
        found = run_command("audit", url, *options)
        assert found.status == 1
        assert {each["condition"] for each in json.loads(found.out)["differences"]} == {"streamed"}
    found = run_command("audit", "127.0.0.1:1")
    assert (found.status, "such as http://127.0.0.1:8080" in found.err) == (2, True)
