"""The chat page in a headless Chromium: messages, answers, settings, and how the page looks."""

import threading
import time
from pathlib import Path

import pytest

from support.pages.browser import Browser
from support.pages.mock_api import Answer, MockApi
from support.pages.page import LAST, READY, ask, says, visit

pytestmark = pytest.mark.slow  # a browser
ENDLESS = 20_000  # words that take longer than any wait


def test_a_conversation(page: Browser, api: MockApi) -> None:
    first = Answer([("content", "Hello ", 1, 0), ("content", "there, you.", 4, 3)], prompt=40, reused=32)
    ask(page, api, "Hi", first)
    assert page.text(f"{LAST} .text").strip() == "Hello there, you."
    assert (api.requests[0]["messages"], api.requests[0]["model"]) == ([{"role": "user", "content": "Hi"}], "mock-35B")
    figures = page.text(f"{LAST} .figures")
    assert "5 tokens" in figures and "3 free (60 %)" in figures and "32 of 40 reused" in figures
    assert page.text("#context") == "45 of 32,768 tokens of context"
    ask(page, api, "More", says("Again."))
    assert [message["role"] for message in api.requests[1]["messages"]] == ["user", "assistant", "user"]

    page.open(api.address)
    page.click("#conversations .title")
    page.until("document.getElementById('thread').innerText.includes('Hello there, you.')")
    assert "Again." in page.text("#thread")


def test_tokens_that_came_free(page: Browser, api: MockApi) -> None:
    ask(page, api, "Hi", Answer([("content", "One ", 1, 0), ("content", "two three four.", 3, 2)]))
    page.click(f"{LAST} [aria-pressed=false]")
    marks = "document.querySelectorAll('.steps span')"
    assert page.run(f"return [...{marks}].map((one) => [one.className, one.textContent, one.title])") == [
        ["free-0", "One ", "1 token in 1 step, 0 free"],
        ["free-2", "two three four.", "3 tokens in 1 step, 2 free"],
    ]
    page.click(f"{LAST} [aria-pressed=true]")
    assert page.text(f"{LAST} .text").strip() == "One two three four."


def test_thoughts_are_open_while_they_are_written(page: Browser, api: MockApi) -> None:
    thoughts = [("reasoning_content", "I wonder. ", 1, 0)] * 12
    thought, said = threading.Event(), threading.Event()
    api.answers = [Answer([*thoughts, thought, *says("So it is.").pieces, said])]
    page.type("Why?{Enter}")
    page.until("document.querySelector('.thought[open]')?.innerText.includes('I wonder.')")
    thought.set()
    page.until(f"!document.querySelector('.thought[open]') && !({READY})")
    said.set()
    page.until(READY)
    assert page.text(".thought summary").startswith("Thought for")
    ask(page, api, "Go on", says("Well."))
    assert api.requests[1]["messages"][1]["reasoning_content"] == "I wonder. " * 12


def test_nothing_moves_while_an_answer_is_written(page: Browser, api: MockApi, bundle: Path) -> None:
    """By Chromium's own measure of what users see jump (layout shift): below 0.1 is good."""
    ask(page, api, "First", says("A short answer."))
    page.run(
        "window.shifts = 0; new PerformanceObserver((list) => list.getEntries().forEach((one) => shifts += one.value))"
        ".observe({type: 'layout-shift'})"
    )
    text = "## A title\n\nSome words and **some more** of them.\n\n```python\nprint(1)\n```\n\n- one\n- two\n\nThe end."
    ask(page, api, "Second", says(text, pause=0.02))
    page.run("return new Promise(requestAnimationFrame)")
    assert page.run("return shifts") < 0.05


def test_escape_stops(page: Browser, api: MockApi) -> None:
    api.answers = [says("word " * ENDLESS, pause=0.02)]
    page.type("Talk{Enter}")
    page.until("document.querySelector('.assistant .text').innerText.includes('word')")
    assert page.run("return document.getElementById('send').getAttribute('aria-label')") == "Stop"
    page.type("{Escape}")
    page.until(READY)
    assert page.text(f"{LAST} .notice span") == "Stopped."
    end = time.monotonic() + 300
    while not api.gone:
        assert time.monotonic() < end, "the server never saw the client go"
        time.sleep(0.02)
    assert api.gone[0] < ENDLESS


def test_edit_and_answer_again(page: Browser, api: MockApi) -> None:
    ask(page, api, "One", says("First."))
    page.click("#prompt")
    page.type("{ArrowUp}")
    page.find(".editor textarea")
    api.answers = [says("Second."), says("Third.")]
    page.type(" more{Enter}")
    page.until("document.querySelector('.assistant .text').innerText.includes('Second.')")
    assert api.requests[1]["messages"] == [{"role": "user", "content": "One more"}]
    assert page.text(".user .version") == "2/2"
    page.until(READY)
    page.click(f"{LAST} [aria-label='Answer again']")
    page.until("document.querySelector('.assistant .text').innerText.includes('Third.')")
    assert api.requests[2] == api.requests[1]
    page.until(READY)
    page.click(f"{LAST} [aria-label='The version before']")
    assert "Second." in page.text(LAST)
    page.click(".user [aria-label='The version before']")
    assert "First." in page.text(LAST) and page.text(".user .text").strip() == "One"


def test_several_conversations(page: Browser, api: MockApi) -> None:
    ask(page, api, "Apples", says("Red."))
    page.click("#new")
    page.until("document.getElementById('thread').children.length === 0")
    left = threading.Event()
    green = says("Green " * 20).pieces
    api.answers = [Answer([*green, left, *green])]
    page.type("Pears{Enter}")
    page.until("document.querySelector('.assistant .text')?.innerText.includes('Green')")
    page.click("#conversations li:nth-child(2) .title")  # the other answer goes on
    page.until("document.getElementById('thread').innerText.includes('Red.')")
    left.set()
    assert "Green" not in page.text("#thread")
    page.click("#conversations li:nth-child(1) .title")
    page.until(READY)
    assert page.text(f"{LAST} .text").split() == ["Green"] * 40
    page.click("#conversations li:nth-child(1) [aria-label^=Rename]")
    page.run("document.querySelector('#conversations input').value = ''")
    page.type("Fruit{Enter}")
    page.until("document.querySelector('#conversations .title').innerText === 'Fruit'")
    assert page.text("#title") == "Fruit"
    page.click("#conversations li:nth-child(1) [aria-label^=Delete]")
    page.click("#question .danger")
    page.until("document.querySelectorAll('#conversations li').length === 1")
    page.open(api.address)
    assert page.text("#conversations .title") == "Apples"


def test_the_sidebar_folds(page: Browser, api: MockApi) -> None:
    visible = "return document.getElementById('sidebar').checkVisibility()"
    page.click("#close-sidebar")
    assert not page.run(visible)
    visit(page, api)
    assert not page.run(visible)
    page.click("#open-sidebar")
    assert page.run(visible)


def test_icons_need_no_server(page: Browser, api: MockApi) -> None:
    page.command("Network.enable")
    page.command("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
    try:
        page.click("#theme")
        width = "return document.querySelector(arguments[0]).getBBox().width"
        assert page.run(width, "#theme use") > 1 and page.run(width, "#send use") > 1
    finally:
        page.command(
            "Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1
        )


def test_without_libraries(window: Browser, api: MockApi) -> None:
    """A checkout whose page was not bundled shows texts as they are, and says what to do."""
    api.bundled = False
    visit(window, api)
    assert "make page" in window.text("#unbundled")
    ask(window, api, "Hi", says("# So\n\n**it** is\n  $x$"))
    assert window.run(f"return document.querySelector('{LAST} .text').innerHTML") == "# So\n\n**it** is\n  $x$ "


def test_plain_text_where_there_is_no_chat_template(page: Browser, api: MockApi) -> None:
    ask(page, api, "Once", Answer(error=(400, {"error": {"message": "the model has no chat template; ..."}}, {})))
    api.answers = [says(" upon a time")]
    page.click(f"{LAST} .notice button")
    page.until("document.querySelector('.assistant:last-child .text').innerText.includes('upon a time')")
    assert "messages" in api.requests[0] and api.requests[1]["prompt"] == "Once"
    assert page.text("#model") == "mock-35B, plain text"


def test_settings_show_the_server_s_defaults(window: Browser, api: MockApi) -> None:
    api.defaults = dict(temperature=0.699999988079071, top_k=20, seed=4294967295, n_predict=-1)
    window.open(api.address)
    window.until("document.querySelector('[name=top_k]').placeholder")
    names = ["temperature", "top_k", "top_p", "seed", "max_tokens"]
    told = window.run("return arguments[0].map((name) => document.querySelector(`[name=${name}]`).placeholder)", names)
    assert told == ["0.7", "20", "", "random", "no limit"]


def test_settings_reach_the_request(page: Browser, api: MockApi) -> None:
    page.click("#open-settings")
    values = dict(system="Be short.", temperature="0.5", top_p="0.9", top_k="20", min_p="0.05", seed="7")
    for name, value in (values | dict(max_tokens="9")).items():
        page.click(f"#settings [name={name}]")
        page.type(value)
    page.run(
        "const field = document.querySelector('[name=thinking]'); field.value = 'off';"
        "field.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    page.click("#settings .primary")
    ask(page, api, "Hi", says("Hello.", finish="length"))
    told = {name: api.requests[0][name] for name in (*values.keys() - {"system"}, "max_tokens")}
    assert told == dict(temperature=0.5, top_p=0.9, top_k=20, min_p=0.05, seed=7, max_tokens=9)
    assert api.requests[0]["messages"][0] == {"role": "system", "content": "Be short."}
    assert api.requests[0]["chat_template_kwargs"] == {"enable_thinking": False}
    assert "limit of tokens" in page.text(f"{LAST} .notice")


def test_keys(page: Browser, api: MockApi) -> None:
    page.click("#prompt")
    page.type("a")
    page.shift_enter()
    page.type("b")
    assert page.run("return document.getElementById('prompt').value") == "a\nb" and not api.requests
    page.run("document.activeElement.blur()")
    page.type("/")
    assert page.run("return document.activeElement.id") == "prompt"
    assert page.run("return document.getElementById('prompt').value") == "a\nb"


def test_a_key_that_the_server_asks_for(window: Browser, api: MockApi) -> None:
    api.key = "secret"
    window.open(api.address)
    window.until("document.getElementById('key').open")
    assert window.run("return document.getElementById('refused').hidden")
    window.type("guess{Enter}")
    window.until("!document.getElementById('refused').hidden")
    window.type("secret{Enter}")
    window.until("document.getElementById('model').textContent")
    ask(window, api, "Hi", says("Hello."))
    assert window.run("return JSON.stringify(localStorage).includes('secret')") is False


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer(error=(429, {"error": {"message": "64 wait."}}, {"Retry-After": "5"})), "64 wait. Try again in 5 s."),
        (Answer(error=(500, {}, {})), "The server answered 500"),
        (says("Half of", cut=True), "The connection ended before the answer did."),
    ],
)
def test_errors_are_told(page: Browser, api: MockApi, answer: Answer, told: str) -> None:
    ask(page, api, "Hi", answer)
    assert told in page.text(f"{LAST} .notice")
    api.answers = [says("Well then.")]
    page.click(f"{LAST} .notice button:last-child")
    page.until("document.querySelector('.assistant:last-child .text').innerText.includes('Well then.')")


def test_an_answer_that_failed_is_not_sent_again(page: Browser, api: MockApi) -> None:
    ask(page, api, "One", Answer(error=(500, {"error": {"message": "No."}}, {})))
    ask(page, api, "Two", says("Yes."))
    assert [message["content"] for message in api.requests[1]["messages"]] == ["One", "Two"]


def test_live_view(page: Browser, api: MockApi) -> None:
    api.running, api.drafted, api.accepted = 3, 200, 150
    page.until("document.getElementById('running').innerText === '3'")
    assert page.text("#kept") == "75 %"
    api.tokens += 1000
    page.until("Number(document.getElementById('rate').innerText.replace(',', '')) > 100")


def test_calls_of_tools(page: Browser, api: MockApi) -> None:
    pieces = [("content", "I look.", 1, 0), ("tool_calls", '{"city": ', 1, 0), ("tool_calls", '"Paris"}', 1, 0)]
    ask(page, api, "Rain?", Answer(pieces, finish="tool_calls"))
    assert page.text(f"{LAST} .call") == 'weather({"city": "Paris"})'


def test_theme(page: Browser, api: MockApi) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    grounds = []
    for _ in range(3):  # light, dark, as the system has it
        page.click("#theme")
        grounds.append(page.run(ground))
    assert grounds[0] == grounds[2] != grounds[1]
    page.click("#theme")
    page.click("#theme")
    page.open(api.address)
    assert page.run(ground) == grounds[1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone(page: Browser, api: MockApi, scheme: str) -> None:
    page.media(scheme)
    page.size(360, 640, phone=True)
    assert page.run("return scroller.scrollHeight <= scroller.clientHeight"), "nothing to scroll on an empty page"
    wide = "| a | b |\n|--|--|\n| " + "word " * 60 + "| x |\n\n```\n" + "x" * 400 + "\n```\n\n" + "y" * 400
    api.answers = [Answer([("content", wide, 1, 0)])]
    page.click("#prompt")
    page.type("z" * 100)
    page.click("#send")
    page.until(READY)
    assert page.run("return Math.max(document.documentElement.scrollWidth, scroller.scrollWidth)") <= 360
    ground = page.run("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (min(ground) > 200) == (scheme == "light")
    page.click("#open-sidebar")
    page.until("document.getElementById('sidebar').getBoundingClientRect().left === 0")
    page.click("#conversations .title")
    page.until("document.getElementById('sidebar').getBoundingClientRect().right <= 0")
    page.media("light")
