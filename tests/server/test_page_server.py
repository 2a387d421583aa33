"""The chat page from the server itself, and its API behind it."""

from dataclasses import replace
from pathlib import Path

import pytest

from support.pages.browser import Browser
from support.pages.page import kept
from support.servers.scripted import PLAIN_TEMPLATE, replying, serving
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.server.settings import Settings
from trigraph.runtime.text.template import ChatTemplate

LAST = ".assistant:last-child"
READY = f"document.querySelector('{LAST} .actions button')"


def ask(window: Browser, text: str) -> None:
    window.click("#prompt")
    window.type(text + "{Enter}")
    window.until("arguments[0] === document.querySelector('.user:nth-last-child(2) .text')?.textContent", text)
    window.until(READY)


def test_thoughts_and_markdown(window: Browser, bundle: Path) -> None:
    reply = "Let me see.\n</think>\n\nIt is **so**, see `x`."
    settings = Settings(model="known", port=0, defaults=Options(Sampling(temperature=0)))
    with serving(replying(reply), settings) as address:
        window.open(address)
        window.until("document.getElementById('model').innerText === 'known'")
        ask(window, "Is it?")
        assert window.run(f"return document.querySelector('{LAST} .text').innerHTML") == (
            "<p>It is <strong>so</strong>, see <code>x</code>.</p>"
        )
        assert window.run("return document.querySelector('.thoughts').textContent").strip() == "Let me see."
        assert window.text("#context").endswith("of 4,096 tokens of context")
        assert not [text for text in window.complaints() if "Content Security Policy" in text]


def test_tiny_model(window: Browser, tiny_package: Path) -> None:
    engine = Engine(
        replace(load(tiny_package, threads=1).model, template=ChatTemplate(PLAIN_TEMPLATE, {"eos_token": "\n"}))
    )
    settings = Settings(model="tiny", port=0, api_keys=("secret",), defaults=Options(draft_tokens=3))
    with serving(engine, settings) as address:
        window.open(address)
        window.until("document.getElementById('key').open")
        window.type("secret{Enter}")
        window.until("document.getElementById('model').innerText === 'tiny'")
        window.click("#open-settings")
        window.click("#settings [name=temperature]")
        window.type("0")
        window.click("#settings [name=max_tokens]")
        window.type("48")
        window.click("#settings .primary")
        ask(window, "In the beginning")
        prompt = engine.chat_template().render([{"role": "user", "content": "In the beginning"}])
        text = engine.generate(prompt, Options(Sampling(temperature=0), max_tokens=48)).run()
        assert kept(window)[0][0]["messages"][1]["content"] == text
        figures = window.text(f"{LAST} .figures")
        assert "tokens/s" in figures and "free" in figures
        ask(window, "And then?")
        assert "reused" in window.text(f"{LAST} .figures")


def test_plain_text(window: Browser, tiny_package: Path) -> None:
    """In the plain mode the model goes on from what is written."""
    engine = load(tiny_package, threads=1)
    options = Options(Sampling(temperature=0), max_tokens=16)
    with serving(engine, Settings(model="tiny", port=0, defaults=options)) as address:
        window.open(address)
        window.until("document.getElementById('model').innerText === 'tiny'")
        window.click("#open-settings")
        window.run(
            "const field = document.querySelector('[name=mode]'); field.value = 'plain';"
            "field.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        window.click("#settings .primary")
        ask(window, "In the beginning")
        first = engine.generate("In the beginning", options).run()
        assert window.text(f"{LAST} .text").split() == first.split()
        ask(window, " And")
        second = engine.generate(f"In the beginning{first} And", options).run()
        assert window.text(f"{LAST} .text").split() == second.split()


@pytest.mark.slow
def test_an_answer_goes_on_and_makes_room(window: Browser) -> None:
    """The server continues where the answer was cut, and the page understands what it says of a full context."""
    reply = "One two three four five six seven eight nine ten."
    engine = replying(reply, template=PLAIN_TEMPLATE, context=256)
    settings = Settings(model="known", port=0, defaults=Options(Sampling(temperature=0), max_tokens=20))
    with serving(engine, settings) as address:
        window.open(address)
        window.until("document.getElementById('model').innerText === 'known'")
        ask(window, "Count")
        assert window.run(f"return document.querySelector('{LAST} .text').innerText").strip() == reply[:20].strip()
        for shown in (reply[:40], reply):
            window.click(f"{LAST} .notice button")
            window.until(READY)
            assert window.run(f"return document.querySelector('{LAST} .text').innerText").strip() == shown.strip()
        ask(window, "x" * 100)
        ask(window, "y" * 100)
        window.click(f"{LAST} .notice button")
        window.until("document.getElementById('room').open")
        assert "the model reads at most 256" in window.text("#room-text")
        window.click("#room [value=leave]")
        window.until(f"document.querySelector('{LAST} .text').innerText.trim() === arguments[0]", reply[:20].strip())
