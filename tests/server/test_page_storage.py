"""Where the chat page keeps conversations: several tabs, data of older pages, and browsers that keep nothing."""

import json
import random
import threading
from typing import Any

import pytest

from support.pages.browser import Browser
from support.pages.mock_api import Answer, MockApi
from support.pages.page import LAST, READY, ask, kept, says, visit

pytestmark = pytest.mark.slow  # a browser

TEXTS = "[...document.querySelectorAll('#thread .text')].map((one) => one.innerText.trim())"
OLD: dict[str, Any] = {
    "id": "0123456789ab",
    "title": "Old",
    "changed": 1_700_000_000_000,
    "leaf": "bb",
    "messages": [
        {"id": "aa", "parent": None, "role": "user", "content": "Hi"},
        {
            "id": "bb",
            "parent": "aa",
            "role": "assistant",
            "content": "One two.",
            "reasoning": "",
            "finish": "stop",
            "steps": {"content": [[4, 1, 0], [4, 3, 2]], "reasoning": []},
        },
    ],
}
"""A conversation as pages without a database kept it in localStorage."""


def messages(page: Browser) -> list[str]:
    return sorted(message["content"].strip() for found in kept(page)[0] for message in found["messages"])


def put_old(page: Browser, conversation: object = OLD) -> None:
    text = conversation if isinstance(conversation, str) else json.dumps(conversation)
    page.run("localStorage.setItem('trigraph.conversation.0123456789ab', arguments[0])", text)


def test_two_tabs_keep_the_messages_of_both(page: Browser, api: MockApi) -> None:
    """Each tab writes what it has; both show all, and neither leaves the version that is read there."""
    ask(page, api, "One", says("First."))
    address = page.run("return location.href")
    with page.second_tab() as (first, second):
        page.open(address)
        page.until("document.querySelector('.assistant .text')?.innerText.includes('First.')")
        ask(page, api, "Two", says("Second."))
        page.go(first)
        page.until(f"{TEXTS}.join() === 'One,First.,Two,Second.'")
        api.answers = [says("Other.")]
        page.click(f"{LAST} [aria-label='Answer again']")
        page.until(f"{TEXTS}.at(-1) === 'Other.' && {READY}")
        page.go(second)
        page.until(f"document.querySelector('{LAST} .version')?.innerText === '1/2'")
        assert page.run(f"return {TEXTS}.at(-1)") == "Second."
        page.click("#conversations [aria-label^=Rename]")
        page.run("document.querySelector('#conversations input').value = ''")
        page.type("Both{Enter}")
        page.go(first)
        page.until("document.getElementById('title').innerText === 'Both'")
        ask(page, api, "Three", says("Third."))
        assert kept(page)[0][0]["title"] == "Both"
        page.go(second)
    assert messages(page) == ["First.", "One", "Other.", "Second.", "Third.", "Three", "Two"]


def test_an_answer_is_seen_and_stopped_from_another_tab(page: Browser, api: MockApi) -> None:
    held = threading.Event()
    api.answers = [Answer([("content", "Long ", 1, 0), held, *[("content", "more ", 1, 0)] * 2000], pause=0.01)]
    page.type("Talk{Enter}")
    page.until("document.querySelector('.assistant .text')?.innerText.includes('Long')")
    address = page.run("return location.href")
    with page.second_tab() as (first, second):
        page.open(address)
        page.until("document.getElementById('send').getAttribute('aria-label') === 'Stop'")
        assert not page.run(f"return {READY}"), "what is being written elsewhere has no buttons"
        held.set()
        page.until(f"{TEXTS}.at(-1)?.includes('more')")
        page.click("#send")
        page.until(f"document.querySelector('{LAST} .notice span')?.innerText === 'Stopped.'")
        page.go(first)
        page.until(READY)
        shown = page.run(f"return {TEXTS}.at(-1)")
        page.go(second)
        page.until(f"arguments[0] === {TEXTS}.at(-1)", shown)


def test_deleted_in_another_tab(page: Browser, api: MockApi) -> None:
    api.answers = [says("word " * 5000, pause=0.02)]
    page.type("Talk{Enter}")
    page.until("document.querySelector('.assistant .text')?.innerText.includes('word')")
    with page.second_tab() as (first, second):
        page.open(api.address)
        page.click("#conversations .title")
        page.click("#conversations [aria-label^=Delete]")
        page.click("#question .danger")
        page.go(first)
        page.until("!document.querySelector('#conversations li, #thread .text')")
        page.until("document.getElementById('send').getAttribute('aria-label') === 'Send'")
        page.go(second)
    visit(page, api)
    assert kept(page) == ([], [])


def test_data_of_older_pages_are_taken_over_once(page: Browser, api: MockApi) -> None:
    put_old(page)
    page.run("localStorage.setItem('trigraph.conversation.bad', 'not JSON')")
    visit(page, api)
    page.click("#conversations .title")
    page.until(f"{TEXTS}.join() === 'Hi,One two.'")
    page.click(f"{LAST} [aria-pressed=false]")
    assert page.run("return [...document.querySelectorAll('.steps span')].map((one) => one.title)") == [
        "1 token in 1 step, 0 free",
        "3 tokens in 1 step, 2 free",
    ]
    left = "return Object.keys(localStorage).filter((key) => key.includes('.conversation.'))"
    assert page.run(left) == ["trigraph.conversation.bad"]  # what nobody can read stays
    (found,) = kept(page)[0]
    assert found["messages"][1]["steps"] == {"content": "\x04\x01\x00\x04\x03\x02", "reasoning": ""}
    # An older page in another tab goes on with it, from what it knew: nothing of either is lost.
    ask(page, api, "More", says("Three."))
    changed = json.loads(json.dumps(OLD))
    changed["messages"].append({"id": "cc", "parent": "bb", "role": "user", "content": "There"})
    put_old(page, changed)
    visit(page, api)
    page.until("!Object.keys(localStorage).includes('trigraph.conversation.0123456789ab')")
    assert messages(page) == ["Hi", "More", "One two.", "There", "Three."]


def test_marks_take_little_room(page: Browser, api: MockApi) -> None:
    ask(page, api, "Hi", Answer([("content", "word ", 1, 0)] * 2000))
    steps = kept(page)[0][0]["messages"][1]["steps"]["content"]
    assert len(steps.encode()) == 3 * 2000


def test_a_browser_without_room(page: Browser, api: MockApi) -> None:
    """The user is told, all stays in the page, and is written as soon as there is room."""
    quota = {"origin": api.address.rstrip("/")}
    page.command("Storage.overrideQuotaForOrigin", **quota, quotaSize=100_000)
    ask(page, api, "Small", says("Yes."))
    page.click("#new")
    page.until("!document.querySelector('#thread .text')")
    api.answers = [Answer([("content", "large " + random.Random(0).randbytes(100_000).hex(), 1, 0)])]
    page.type("Large{Enter}")
    page.until("document.getElementById('context').innerText.includes('no more room')")
    page.until(READY)
    page.click("#conversations li:nth-child(2) .title")
    page.until(f"{TEXTS}.join() === 'Small,Yes.'")
    page.click("#conversations li:nth-child(1) .title")
    page.until(f"{TEXTS}.at(-1)?.includes('large')")
    page.click("#conversations li:nth-child(2) .title")
    assert max(map(len, messages(page))) < 100
    assert page.run("return dispatchEvent(new Event('beforeunload', {cancelable: true}))") is False, "it would not ask"
    page.command("Storage.overrideQuotaForOrigin", **quota)
    page.click("#conversations li:nth-child(2) [aria-label^=Delete]")
    page.click("#question .danger")
    page.until("dispatchEvent(new Event('beforeunload', {cancelable: true}))")
    assert len(kept(page)[0]) == 1 and max(map(len, messages(page))) > 200_000


def test_a_browser_without_a_database(page: Browser, api: MockApi) -> None:
    """As in some private windows: old conversations are shown and stay where they are; new ones live with the page."""
    put_old(page)
    script = "Object.defineProperty(window, 'indexedDB', {value: {open() { throw new Error('forbidden'); }}})"
    added = page.command("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]
    try:
        visit(page, api)
        page.until("document.getElementById('context').innerText.includes('keeps no conversations here (forbidden)')")
        page.click("#conversations .title")
        page.until(f"{TEXTS}.join() === 'Hi,One two.'")
        ask(page, api, "More", says("Three."))
        page.click("#new")
        page.until("!document.querySelector('#thread .text')")
        page.click("#conversations .title")
        page.until(f"{TEXTS}.join() === 'Hi,One two.,More,Three.'")
        assert page.run("return Object.keys(localStorage).includes('trigraph.conversation.0123456789ab')")
    finally:
        page.command("Page.removeScriptToEvaluateOnNewDocument", identifier=added)
    page.run("window.onbeforeunload = null")


def test_a_page_of_old_that_holds_the_database(window: Browser, api: MockApi, bundle: object) -> None:
    """It does not close it for a newer one: the user is told, and all is written once it has gone."""
    window.open(f"{api.address}icon.svg")
    window.later("const done = arguments[0]; const asked = indexedDB.open('trigraph', 1);"
                 "asked.onupgradeneeded = () => asked.result.createObjectStore('images');"
                 "asked.onsuccess = () => { window.held = asked.result; done(true); }")  # fmt: skip
    with window.second_tab() as (first, second):
        window.open(api.address)
        window.until("document.getElementById('context').innerText.includes('older version of this page')")
        ask(window, api, "Hi", says("Hello."))
        window.go(first)
        window.run("held.close()")
        window.go(second)
        ask(window, api, "More", says("Again."))
        window.until("!document.getElementById('context').classList.contains('trouble')")
        assert messages(window) == ["Again.", "Hello.", "Hi", "More"]


def test_a_tab_that_died_leaves_what_it_wrote(page: Browser, api: MockApi) -> None:
    """Its answer is not held to be in the making; it can be continued."""
    put_old(page, OLD | {"messages": [OLD["messages"][0], OLD["messages"][1] | {"open": True, "finish": None}]})
    visit(page, api)
    page.click("#conversations .title")
    page.until(f"document.querySelector('{LAST} .notice span')?.innerText === 'The answer was cut off.'")
    api.answers = [says("Three.")]
    page.click(f"{LAST} .notice button")
    page.until(f"{TEXTS}.at(-1) === 'One two.Three.' && {READY}")
    assert api.requests[0]["messages"][-1] == {"role": "assistant", "content": "One two."}
