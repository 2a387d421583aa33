"""What a person does on the chat page, in front of the API of support.pages.mock_api."""

from __future__ import annotations

import base64
from typing import Any

from support.pages.browser import Browser
from support.pages.mock_api import Answer, MockApi

LAST = ".assistant:last-child"
READY = f"document.querySelector('{LAST} .actions button')"


def says(text: str, **more: object) -> Answer:
    """An answer of one token a word."""
    words = [word + " " for word in text.split(" ")]
    return Answer([("content", word, 1, 0) for word in words], **more)  # type: ignore[arg-type]


_KEPT = """
const done = arguments[0];
const asked = indexedDB.open('trigraph');
asked.onsuccess = () => {
  const stores = ['conversations', 'images'];
  const transaction = asked.result.transaction(stores);
  const found = stores.map((name) => transaction.objectStore(name).getAll());
  transaction.oncomplete = () => { asked.result.close(); done(found.map(({ result }) => result)); };
};
"""


def kept(page: Browser) -> tuple[list[dict[str, Any]], list[str]]:
    """The conversations and the images that the browser's database has."""
    conversations, images = page.later(_KEPT)
    return conversations, images


def visit(page: Browser, api: MockApi) -> None:
    """Opens the page and waits for its scripts, which the browser's own load event does not wait for."""
    page.open(api.address)
    page.until("document.getElementById('model').textContent")


def ask(page: Browser, api: MockApi, text: str, *answers: Answer) -> None:
    """Sends a message and waits for the whole answer."""
    api.answers += answers
    page.click("#prompt")
    page.type(text + "{Enter}")
    page.until("arguments[0] === document.querySelector('.user:nth-last-child(2) .text')?.innerText.trim()", text)
    page.until(READY)


# Hands a file of base64 to a listener of the page, as the clipboard or a mouse would.
_GIVE = """
const [kind, selector, name, type, data] = arguments;
const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
const transfer = new DataTransfer();
transfer.items.add(new File([bytes], name, { type }));
const target = document.querySelector(selector);
const made = { bubbles: true, cancelable: true };
target.dispatchEvent(
  kind === "paste"
    ? new ClipboardEvent("paste", { ...made, clipboardData: transfer })
    : new DragEvent(kind, { ...made, dataTransfer: transfer }),
);
"""


def give(page: Browser, kind: str, data: bytes, name: str = "a.png", of: str = "image/png") -> None:
    """Pastes or drops a file, or drags it over the page."""
    selector = "#prompt" if kind == "paste" else "#scroller"
    page.run(_GIVE, kind, selector, name, of, base64.b64encode(data).decode())
