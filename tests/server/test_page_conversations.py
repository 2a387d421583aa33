"""The conversations of the chat page: their addresses, search, export and import."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from support.pages.browser import Browser
from support.pages.mock_api import Answer, MockApi
from support.pages.page import LAST, READY, ask, kept, says

pytestmark = pytest.mark.slow  # a browser

ENDLESS = 20_000


def test_every_conversation_has_an_address(page: Browser, api: MockApi) -> None:
    ask(page, api, "Apples", says("Red."))
    apples = page.run("return location.href")
    assert apples.startswith(f"{api.address}#/")
    page.click("#new")
    ask(page, api, "Pears", says("Green."))
    assert page.run("return location.href") != apples
    page.run("history.back()")
    page.until("arguments[0] === location.href", apples)
    page.until("document.getElementById('thread').innerText.includes('Red.')")
    page.open("about:blank")
    page.open(apples)
    page.until("document.getElementById('thread').innerText.includes('Red.')")
    assert page.text("#title") == "Apples"
    page.open(f"{api.address}#/0123456789ab")
    page.until("document.getElementById('greeting').innerText === 'This conversation is not in this browser.'")


def test_search(page: Browser, api: MockApi) -> None:
    """Finds what was said, in other versions of an answer as well, and goes there."""
    ask(page, api, "Apples", says("Crimson as a rose."))
    api.answers = [says("Long. " * 400)]
    page.click(f"{LAST} [aria-label='Answer again']")
    page.until("document.querySelector('.assistant .text').innerText.includes('Long.')")
    page.until(READY)
    page.click("#new")
    ask(page, api, "Pears", says("Green."))
    page.click("#search")
    page.type("CRIMSON")
    page.until("document.querySelectorAll('#conversations li').length === 1")
    assert page.text("#conversations small") == "Crimson as a rose."
    page.click("#conversations .title")
    page.until("document.getElementById('thread').innerText.includes('Crimson')")
    assert page.text(f"{LAST} .version") == "1/2"
    assert page.run("return [...CSS.highlights.get('found')].map(String)") == ["Crimson"]
    page.run(
        "const field = document.getElementById('search'); field.value = 'zebra';field.dispatchEvent(new Event('input'))"
    )
    assert page.text("#none-found") == "No conversation contains this."


def test_the_search_goes_to_its_hit(page: Browser, api: MockApi) -> None:
    """The words are in the middle of the window and marked, in a long message as well and when asked for again."""
    ask(page, api, "Apples", says("line\n\n" * 200 + "A **need**le: needle.\n\n" + "line\n\n" * 200))
    ask(page, api, "More", says("Much more.\n\n" * 100))
    page.click("#new")
    page.click("#search")
    page.type("NEEDLE")
    page.until("document.querySelectorAll('#conversations li').length === 1")
    hit = "[...CSS.highlights.get('found') ?? []][0]?.getBoundingClientRect()"
    for _ in range(2):
        page.run("scroller.scrollTop = 0")
        page.click("#conversations .title")
        page.until(f"Math.abs({hit}?.top - innerHeight / 2) < 100")
        assert page.run("return [...CSS.highlights.get('found')].map(String)") == ["needle"] * 2
        assert page.run("return document.querySelector('.found').innerText").startswith("line")


def imported(page: Browser, path: Path, content: object) -> str:
    """Imports a file; returns what the page says of it."""
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    page.run("document.getElementById('imported').hidden = true")
    page.upload("#import-file", path)
    page.until("!document.getElementById('imported').hidden")
    return str(page.run("return document.getElementById('imported').textContent"))


def test_export_and_import(page: Browser, api: MockApi, tmp_path: Path) -> None:
    page.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    ask(page, api, "Apples", Answer([("reasoning_content", "Hm. ", 1, 0), ("content", "Red and green.", 4, 3)]))
    before = kept(page)[0]
    page.click("#open-settings")
    page.click("#export")
    path = tmp_path / "trigraph-conversations.json"
    end = time.monotonic() + page.patience
    while not path.exists():
        assert time.monotonic() < end, "nothing was downloaded"
        time.sleep(0.02)
    page.run("indexedDB.deleteDatabase('trigraph')")
    assert imported(page, tmp_path / "copy.json", path.read_text()) == "Imported 1 conversation."
    assert kept(page)[0] == before
    page.click("#settings .primary")
    page.click("#conversations .title")
    page.until("document.querySelector('.assistant .text')?.innerText.includes('Red and green.')")
    older = {
        "format": "trigraph.conversations",
        "version": 1,
        "conversations": [before[0] | {"changed": 1, "title": "x"}],
    }
    assert imported(page, tmp_path / "older.json", older) == "Imported 1 conversation."
    assert kept(page)[0] == before


MESSAGE = {"id": "b", "parent": None, "role": "user", "content": "Hi"}
CONVERSATION: dict[str, Any] = {"id": "a", "title": "", "changed": 1, "leaf": "b", "messages": [MESSAGE]}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"id": "../x"}, "wrong id"),
        ({"title": None}, "wrong title"),
        ({"changed": "now"}, "wrong time"),
        ({"messages": {}}, "wrong list of messages"),
        ({"messages": [MESSAGE | {"role": "system"}]}, "wrong message"),
        ({"messages": [MESSAGE | {"content": {}}]}, "wrong message"),
        ({"messages": [MESSAGE | {"parent": "b"}]}, "wrong message"),  # a circle
        ({"messages": [MESSAGE, MESSAGE]}, "wrong message"),
        ({"messages": [None]}, "wrong message"),
        ({"leaf": "c"}, "wrong last message"),
    ],
)
def test_a_damaged_import_changes_nothing(page: Browser, tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    file = {"format": "trigraph.conversations", "version": 1, "conversations": [CONVERSATION, CONVERSATION | changes]}
    assert told in imported(page, tmp_path / "damaged.json", file)
    assert kept(page) == ([], [])


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": "trigraph.conversations", "version": 2, "conversations": []}']
)
def test_foreign_files_are_refused(page: Browser, tmp_path: Path, content: str) -> None:
    assert imported(page, tmp_path / "foreign.json", content).startswith("This file")


def test_an_import_cannot_make_elements(page: Browser, tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    answer: dict[str, object] = {
        "id": "c",
        "parent": "b",
        "role": "assistant",
        "content": hostile,
        "reasoning": hostile,
    }
    answer |= {
        "figures": {"tokens": hostile},
        "calls": [{"name": hostile, "arguments": hostile}, None],
        "steps": hostile,
    }
    file = CONVERSATION | {"title": hostile, "messages": [MESSAGE | {"content": hostile}, answer], "leaf": "c"}
    content = {"format": "trigraph.conversations", "version": 1, "conversations": [file]}
    assert imported(page, tmp_path / "hostile.json", content) == "Imported 1 conversation."
    page.click("#conversations .title")
    page.until("document.querySelector('.assistant .text')?.textContent.includes('<img')")
    assert not page.run("return document.querySelectorAll('#thread img, #conversations img').length")


def test_what_came_before_the_page_was_left_stays(page: Browser, api: MockApi) -> None:
    api.answers = [says("word " * ENDLESS, pause=0.02)]
    page.type("Talk{Enter}")
    page.until("document.querySelector('.assistant .text')?.innerText.includes('word word')")
    page.open(api.address)
    page.click("#conversations .title")
    page.until("document.querySelector('.notice')?.innerText")
    assert "word word" in page.text(f"{LAST} .text") and page.text(f"{LAST} .notice span") == "Stopped."
