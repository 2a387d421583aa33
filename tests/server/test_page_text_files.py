"""Text files as attachments of the chat page: chosen, pasted, dropped, removed, bounded, sent as text, kept."""

from pathlib import Path

import pytest

from support.pages.browser import Browser
from support.pages.mock_api import MockApi
from support.pages.page import LAST, READY, ask, give, kept, says, visit

pytestmark = pytest.mark.slow  # a browser

CHIPS = "[...document.querySelectorAll('#attached .file')].map((one) => one.innerText.trim().split(/\\s*\\n\\s*/))"


def test_a_message_with_text_files(page: Browser, api: MockApi, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# Notes\n\n```\ncode\n```\n")
    (tmp_path / "data.csv").write_bytes("a,b\n1,ü\n".encode("utf-16"))
    for name in ("notes.md", "data.csv"):
        page.upload("#attach-file", tmp_path / name)
        page.until("document.getElementById('attached').innerText.includes(arguments[0])", name)
    assert page.run(f"return {CHIPS}") == [["notes.md", "22 bytes"], ["data.csv", "18 bytes"]]
    ask(page, api, "What is this?", says("Two files."))
    sent = "notes.md:\n````\n# Notes\n\n```\ncode\n```\n````\n\ndata.csv:\n```\na,b\n1,ü\n```\n\nWhat is this?"
    assert api.requests[0]["messages"] == [{"role": "user", "content": sent}]
    assert page.run("return document.getElementById('attached').hidden")
    # They are kept with the message, and shown when asked for; a changed message keeps them.
    visit(page, api)
    page.click("#conversations .title")
    page.click(".user .file summary")
    assert "# Notes" in page.text(".user .file pre") and page.text(".user .text") == "What is this?"
    page.run("document.querySelector('.user [aria-label=Edit]').click()")
    api.answers = [says("Files.")]
    page.type(" Really{Enter}")
    page.until(f"document.querySelector('{LAST} .text')?.innerText.includes('Files.')")
    page.until(READY)
    assert api.requests[1]["messages"][0]["content"] == sent + " Really"


@pytest.mark.parametrize("kind", ["paste", "drop"])
def test_pasted_and_dropped(page: Browser, api: MockApi, kind: str) -> None:
    give(page, kind, b"let x = 1;\n", "main.js", "text/javascript")
    give(page, kind, b"<svg/>", "drawing.svg", "image/svg+xml")  # text to a model
    page.until(f"{CHIPS}.length === 2")
    page.click("[aria-label='Remove drawing.svg']")
    page.until(f"{CHIPS}.length === 1")
    assert page.run("return document.activeElement.getAttribute('aria-label')") == "Remove main.js"
    api.answers = [says("A variable.")]
    page.click("#send")  # without a word
    page.until(READY)
    assert api.requests[0]["messages"][0]["content"] == "main.js:\n```\nlet x = 1;\n```"
    assert page.text("#title") == "main.js" and not page.run(
        "return document.querySelector('.user .text').checkVisibility()"
    )
    assert kept(page)[0][0]["messages"][0]["files"] == [{"name": "main.js", "text": "let x = 1;\n"}]


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("a.pdf", b"%PDF-1.7\n\xff\xfe\x80", "a.pdf is neither text in UTF-8 nor an image."),
        ("a.bin", b"ab\0c", "a.bin is neither text in UTF-8 nor an image."),
        ("a.log", b"x" * 1_200_000, "a.log has 1.2 MB: the text files of a message have at most 1.0 MB together."),
    ],
)
def test_what_cannot_be_added_is_said(page: Browser, api: MockApi, name: str, data: bytes, told: str) -> None:
    give(page, "drop", data, name, "application/octet-stream")
    page.until("document.getElementById('attach-told').innerText")
    assert page.text("#attach-told") == told
    assert page.run("return document.getElementById('attached').hidden")
    ask(page, api, "Hi", says("Hello."))
    assert api.requests[0]["messages"] == [{"role": "user", "content": "Hi"}]
