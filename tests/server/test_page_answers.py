"""Answers of the chat page that go on: after a limit, a stop, a lost connection, and where the context is full."""

import threading
from typing import Any

import pytest

from support.pages.browser import Browser
from support.pages.mock_api import Answer, MockApi
from support.pages.page import LAST, READY, ask, kept, says, visit

pytestmark = pytest.mark.slow  # a browser

FULL = {
    "message": "this model's maximum context length is 1000 tokens, and the prompt has 1600; shorten it",
    "code": "context_length_exceeded",
}
LONG = "word " * 100


def ways(page: Browser) -> list[str]:
    """What can be done about the last answer."""
    buttons = page.run(f"return [...document.querySelectorAll('{LAST} .notice button')].map((one) => one.innerText)")
    return list(buttons)


def go_on(page: Browser, api: MockApi, *answers: Answer) -> list[dict[str, Any]]:
    """Continues the last answer; returns the messages of the last request."""
    api.answers += answers
    page.click(f"{LAST} .notice button")
    page.until(READY)
    return list(api.requests[-1]["messages"])


def test_after_a_limit(page: Browser, api: MockApi) -> None:
    ask(page, api, "Hi", Answer([("content", "One two", 2, 1)], finish="length", prompt=40, reused=8))
    assert ways(page) == ["Continue"]
    sent = go_on(page, api, Answer([("content", " three", 1, 0)], finish="length", prompt=42))
    assert sent[1:] == [{"role": "assistant", "content": "One two"}]
    go_on(page, api, Answer([("content", " four.", 2, 1)], prompt=43))
    assert page.text(f"{LAST} .text") == "One two three four." and ways(page) == []
    figures = page.text(f"{LAST} .figures")
    assert "5 tokens" in figures and "2 free" in figures and "8 of 40 reused" in figures
    assert page.text("#context") == "45 of 32,768 tokens of context"
    page.click(f"{LAST} [aria-pressed=false]")
    assert page.run("return [...document.querySelectorAll('.steps span')].map((one) => one.innerText)") == [
        "One two",
        " three",
        " four.",
    ]
    visit(page, api)
    page.click("#conversations .title")
    assert page.text(f"{LAST} .text") == "One two three four."


def test_after_a_stop_in_a_thought(page: Browser, api: MockApi) -> None:
    api.answers = [Answer([("reasoning_content", "Let me ", 1, 0), threading.Event()])]
    page.type("Why?{Enter}")
    page.until("document.querySelector('.thoughts')?.textContent.includes('Let me')")
    page.type("{Escape}")
    page.until(READY)
    assert ways(page) == ["Continue"]
    sent = go_on(page, api, Answer([("reasoning_content", "see.", 1, 0), ("content", "So.", 1, 0)]))
    assert sent[1:] == [{"role": "assistant", "content": "", "reasoning_content": "Let me "}]
    assert page.run("return document.querySelector('.thoughts').textContent").strip() == "Let me see."
    assert page.text(f"{LAST} .text") == "So."


def test_after_a_lost_connection(page: Browser, api: MockApi) -> None:
    ask(page, api, "Hi", says("Half of", cut=True))
    assert ways(page) == ["Continue", "Try again"]
    go_on(page, api, says("it."))
    assert page.text(f"{LAST} .text") == "Half of it."
    assert not page.run(f"return document.querySelector('{LAST} .error')")
    ask(page, api, "More", says("Yes.", finish="length"))
    ask(page, api, "And more", says("No."))
    assert not page.run("return document.querySelector('.notice:not([hidden]) button')"), "only the last one goes on"


def fill(page: Browser, api: MockApi, turns: int = 4) -> None:
    """A conversation of some turns, the last of which finds no room."""
    for i in range(turns - 1):
        ask(page, api, f"Question {i}", says(f"Answer {i} {LONG}"))
    ask(page, api, "The last one", Answer(error=(400, {"error": FULL}, {})))
    assert ways(page) == ["Make room…"]


def make_room(page: Browser, way: str) -> str:
    """Chooses a way on; returns what was asked."""
    page.click(f"{LAST} .notice button")
    page.until("document.getElementById('room').open")
    told = page.text("#room-text")
    page.click(f"#room [value={way or repr('')}]")
    return told


def test_the_oldest_messages_are_left_out(page: Browser, api: MockApi) -> None:
    fill(page, api)
    assert make_room(page, "") == (
        "This conversation has 1,600 tokens, and the model reads at most 1,000. Its first 6 of 7 messages can make "
        "room: they stay on this page, but the model no longer sees them."
    )
    assert ways(page) == ["Make room…"] and len(api.requests) == 4, "nothing happens before it is chosen"
    api.answers = [says("Here.")]
    make_room(page, "leave")
    page.until(f"document.querySelector('{LAST} .text').innerText.includes('Here.')")
    assert api.requests[-1]["messages"] == [{"role": "user", "content": "The last one"}]
    assert page.text(".cut") == "The model no longer sees the messages above."
    assert page.run("return document.querySelector('.cut').nextSibling.innerText").startswith("The last one")
    ask(page, api, "Next", says("Yes."))  # what follows begins there as well, also after a reload
    visit(page, api)
    page.click("#conversations .title")
    page.until("document.querySelector('.cut')")
    ask(page, api, "Then", says("Yes."))
    assert [message["content"] for message in api.requests[-1]["messages"]] == [
        "The last one", "Here. ", "Next", "Yes. ", "Then",
    ]  # fmt: skip


def test_a_summary_takes_their_place(page: Browser, api: MockApi) -> None:
    fill(page, api)
    api.answers = [Answer(error=(500, {"error": {"message": "No."}}, {}))]
    make_room(page, "summary")
    page.until(f"document.querySelector('{LAST} .notice span').innerText === 'No.'")
    api.answers = [says("We talked."), says("Here.")]
    page.click(f"{LAST} .notice button")
    page.until(f"document.querySelector('{LAST} .text').innerText.includes('Here.')")
    page.until(READY)
    asked, then = api.requests[-2:]
    assert [message["role"] for message in asked["messages"]] == ["user", "assistant"] * 3 + ["user"]
    assert "Summarize" in asked["messages"][-1]["content"] and asked["max_tokens"] == 1024
    (only,) = then["messages"]
    assert "We talked." in only["content"] and only["content"].endswith("The last one")
    page.click(".cut summary")
    assert "We talked." in page.text(".cut")
    assert kept(page)[0][0]["messages"][-1]["summary"] == "We talked."


def test_one_question_alone_is_too_long(page: Browser, api: MockApi) -> None:
    ask(page, api, "Much", Answer(error=(400, {"error": FULL}, {})))
    assert ways(page) == ["Try again"] and "shorten it" in page.text(f"{LAST} .notice")


def test_the_choice_of_a_model(window: Browser, api: MockApi, bundle: object) -> None:
    api.models = ("large-35B", "small-0.8B")
    window.size(1280, 800)
    window.open(api.address)
    window.until("document.getElementById('choice').checkVisibility()")
    assert window.text("#model") == "" and window.text("#greeting") == "Ask large-35B something."
    window.run("const field = document.getElementById('choice'); field.value = 'small-0.8B';"
               "field.dispatchEvent(new Event('input', {bubbles: true}))")  # fmt: skip
    assert window.text("#greeting") == "Ask small-0.8B something."
    ask(window, api, "Hi", says("Hello."))
    window.open(api.address)
    window.until("document.getElementById('choice').value === 'small-0.8B'")
    ask(window, api, "Hi", says("Hello."))
    assert [request["model"] for request in api.requests] == ["small-0.8B"] * 2


def test_no_choice_of_one_model(page: Browser, api: MockApi) -> None:
    assert page.text("#model") == "mock-35B"
    assert not page.run("return document.getElementById('choice').checkVisibility()")
