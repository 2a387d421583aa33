"""Images on the chat page: chosen, pasted, dropped, removed, sent, kept, exported; desktop and phone."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support.pages.browser import Browser
from support.pages.mock_api import MockApi
from support.pages.page import LAST, READY, ask, give, kept, says, visit
from support.pictures.pictures import encode, pixels
from trigraph.runtime.images.decoder_process import smart_resize

pytestmark = pytest.mark.slow  # a browser

LIMITS = {"most": 4, "min_tokens": 64, "max_tokens": 1024}
ATTACHED = "document.querySelectorAll('#attached li')"


@pytest.fixture
def page(window: Browser, api: MockApi, bundle: Path) -> Browser:
    api.images = LIMITS
    window.size(1280, 800)
    window.complaints()
    visit(window, api)
    window.until("document.getElementById('attach').title.includes('images')")
    return window


def attach(page: Browser, folder: Path, *sizes: tuple[int, int]) -> list[bytes]:
    """Chooses image files of these heights and widths."""
    files = [encode(pixels(*size), "PNG") for size in sizes]
    for i, data in enumerate(files):
        (folder / f"{i}.png").write_bytes(data)
        count = page.run(f"return {ATTACHED}.length")
        page.upload("#attach-file", folder / f"{i}.png")
        page.until(f"{ATTACHED}.length > arguments[0]", count)
    return files


def test_a_conversation_with_images(page: Browser, api: MockApi, tmp_path: Path) -> None:
    files = attach(page, tmp_path, (300, 500), (64, 64))
    assert page.run(f"return [...{ATTACHED}].map((one) => one.innerText.trim())") == ["144 tokens", "64 tokens"]
    page.click("[aria-label='Remove image 1']")
    page.until(f"{ATTACHED}.length === 1")
    attach(page, tmp_path, (300, 500))
    ask(page, api, "What is this?", says("Waves."))
    sent: Any = api.requests[0]["messages"][0]["content"]
    assert [part["type"] for part in sent] == ["image_url", "image_url", "text"] and sent[2]["text"] == "What is this?"
    assert sent[1]["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(files[0]).decode()
    assert page.run("return document.getElementById('attached').hidden")
    # The second turn has them again, also after a reload.
    visit(page, api)
    page.click("#conversations .title")
    page.until("[...document.querySelectorAll('.pictures img')].filter((one) => one.naturalWidth).length === 2")
    ask(page, api, "Sure?", says("Yes."))
    assert api.requests[1]["messages"][0]["content"] == sent and api.requests[1]["messages"][2]["content"] == "Sure?"
    # A changed message keeps its images.
    page.run("document.querySelector('.user [aria-label=Edit]').click()")
    api.answers = [says("Sea.")]
    page.type(" Really{Enter}")
    page.until("document.querySelector('.assistant .text')?.innerText.includes('Sea.')")
    page.until(READY)
    assert api.requests[2]["messages"][0]["content"][:2] == sent[:2]
    assert not page.complaints()


def test_an_image_alone(page: Browser, api: MockApi, tmp_path: Path) -> None:
    attach(page, tmp_path, (100, 100))
    api.answers = [says("A square.")]
    page.click("#send")
    page.until(READY)
    assert [part["type"] for part in api.requests[0]["messages"][0]["content"]] == ["image_url"]
    assert page.text("#title") == "Image"


@pytest.mark.parametrize("kind", ["paste", "drop"])
def test_pasted_and_dropped(page: Browser, api: MockApi, kind: str) -> None:
    if kind == "drop":
        give(page, "dragover", b"")
        assert page.run("return document.getElementById('drop').checkVisibility()")
    give(page, kind, encode(pixels(40, 56), "JPEG"), "a.jpg", "image/jpeg")
    page.until(f"{ATTACHED}.length === 1")
    assert not page.run("return document.getElementById('drop').checkVisibility()")
    ask(page, api, "Hi", says("Hello."))
    url = api.requests[0]["messages"][0]["content"][0]["image_url"]["url"]
    assert url.startswith("data:image/jpeg;base64,")


def test_large_and_other_files_become_jpegs(page: Browser, api: MockApi) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (3000, 2000, 3), np.uint8)
    give(page, "drop", encode(noise, "BMP"), "a.bmp", "image/bmp")
    page.until(f"{ATTACHED}.length === 1")
    ask(page, api, "Hi", says("Hello."))
    head, _, data = api.requests[0]["messages"][0]["content"][0]["image_url"]["url"].partition(",")
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    assert head == "data:image/jpeg;base64" and abs(image.width * image.height - (4 << 20)) < 4000


def test_what_cannot_be_added_is_said(page: Browser, api: MockApi, tmp_path: Path) -> None:
    give(page, "drop", b"hello", "notes.png")
    page.until("document.getElementById('attach-told').innerText")
    assert page.text("#attach-told") == "notes.png is not an image that this browser can read."
    attach(page, tmp_path, *[(40, 40)] * 4)
    give(page, "drop", encode(pixels(9, 9), "PNG"))
    page.until("document.getElementById('attach-told').innerText.includes('at most 4 images')")


def test_a_model_that_reads_text_only(window: Browser, api: MockApi, bundle: Path) -> None:
    visit(window, api)
    assert window.run("return document.getElementById('attach').title") == "Add text files"
    give(window, "drop", encode(pixels(9, 9), "PNG"))
    window.until("document.getElementById('attach-told').innerText === 'This model reads text only.'")


def test_tokens_are_counted_as_the_server_does(page: Browser) -> None:
    rng = np.random.default_rng(1)
    sizes = [[int(side) for side in np.exp(rng.uniform(2, 8.5, 2))] for _ in range(2000)] + [[80, 48], [16, 48]]
    found = page.later(
        "const [sizes, limits, done] = arguments; import('/images.js').then(({ tokens }) => "
        "done(sizes.map(([height, width]) => tokens({ height, width }, limits))))",
        sizes,
        LIMITS,
    )
    for (height, width), tokens in zip(sizes, found, strict=True):
        rows, columns = smart_resize(height, width, 32, 64 << 10, 1024 << 10)
        assert tokens == rows * columns // 1024, (height, width)


def test_deleted_with_their_conversation(page: Browser, api: MockApi, tmp_path: Path) -> None:
    attach(page, tmp_path, (40, 40))
    ask(page, api, "Hi", says("Hello."))
    assert len(kept(page)[1]) == 1
    page.click("#conversations [aria-label^=Delete]")
    page.click("#question .danger")
    page.until("document.querySelectorAll('#conversations li').length === 0")
    for _ in range(100):
        if kept(page) == ([], []):
            return
    raise AssertionError("the image is still there")


def test_a_file_of_conversations_has_images(page: Browser, api: MockApi, tmp_path: Path) -> None:
    (data,) = attach(page, tmp_path, (40, 40))
    ask(page, api, "Hi", says("Hello."))
    page.run(
        "window.made = []; const old = URL.createObjectURL;"
        "URL.createObjectURL = (blob) => { blob.text().then((text) => made.push(text)); return old(blob); }"
    )
    page.click("#open-settings")
    page.click("#export")
    page.until("made.length")
    text = page.run("return made[0]")
    (shown,) = json.loads(text)["conversations"][0]["messages"][0]["images"]
    assert shown["data"] == "data:image/png;base64," + base64.b64encode(data).decode()
    page.run("indexedDB.deleteDatabase('trigraph')")
    visit(page, api)
    (tmp_path / "kept.json").write_text(text)
    page.click("#open-settings")
    page.upload("#import-file", tmp_path / "kept.json")
    page.until("document.getElementById('imported').innerText.includes('Imported 1')")
    page.click("#settings .primary")
    page.click("#conversations .title")
    page.until("document.querySelector('.pictures img')?.naturalWidth === 40")
    bad = text.replace("data:image/png;base64,", "data:text/html;base64,")
    (tmp_path / "bad.json").write_text(bad)
    page.click("#open-settings")
    page.upload("#import-file", tmp_path / "bad.json")
    page.until("document.getElementById('imported').innerText.includes('wrong message')")


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844), (320, 568)])
def test_nothing_is_cut_off(page: Browser, api: MockApi, tmp_path: Path, width: int, height: int) -> None:
    page.size(width, height, phone=width < 1000)
    attach(page, tmp_path, (600, 800), (900, 90), (60, 900), (64, 64))
    inside = "return document.documentElement.scrollWidth <= innerWidth && document.querySelector('#composer')"
    assert page.run(f"{inside}.getBoundingClientRect().right <= innerWidth")
    page.run("document.getElementById('prompt').focus()")
    api.answers = [says("Several.")]
    page.type("What are these?")
    page.click("#send")
    page.until(READY)
    assert page.run(f"{inside} && true") and page.text(f"{LAST} .text").strip() == "Several."
    right = page.run("return Math.max(...[...document.querySelectorAll('.pictures *')].map((one) => "
                     "one.getBoundingClientRect().right))")  # fmt: skip
    assert right <= width
    page.size(1280, 800)
